"""Callers as they are kept in Redis: encrypted, since they hold users' keys and addresses (decision 0044).

The key is derived from a secret of the fronts, with a salt of the process: its random nonces then never have to be
unique among more than one process's records. Each record is bound to its operation, so that nobody who can write to
Redis can make a front cancel one user's request with another user's key.
"""

import os
from typing import Final

import orjson
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from horde.oai.horde_client import Caller

__all__ = ["CallerSealer", "SealError"]

_VERSION: Final = b"\x01"
_SALT_BYTES: Final = 16
_NONCE_BYTES: Final = 12
_KEY_BYTES: Final = 32
_REALM_BYTES: Final = 8


class SealError(Exception):
    """A record was not made with this secret for this operation, or is damaged."""


class CallerSealer:
    """Encrypts callers and reads them back.

    Args:
        secret: What all fronts of one Horde share.

    Attributes:
        realm: Names the secret without telling it: fronts with another secret keep apart from these.
    """

    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()
        self.realm = self._derive(b"", b"realm", _REALM_BYTES).hex()
        self._salt = os.urandom(_SALT_BYTES)
        self._cipher = self._cipher_of(self._salt)

    def seal(self, operation_key: str, caller: Caller, opened_at: float) -> bytes:
        """Return a record.

        Args:
            operation_key: The operation it belongs to.
            caller: Who submits.
            opened_at: Unix seconds of the submit.
        """
        fields = [caller.api_key, caller.client_agent, caller.client_address, opened_at]
        nonce = os.urandom(_NONCE_BYTES)
        sealed = self._cipher.encrypt(nonce, orjson.dumps(fields), operation_key.encode())
        return b"".join((_VERSION, self._salt, nonce, sealed))

    def open(self, operation_key: str, record: bytes) -> tuple[Caller, float]:
        """Return the caller and the Unix seconds of the submit.

        Raises:
            SealError: It is not a record of this operation under this secret.
        """
        salt, nonce_at = record[1 : 1 + _SALT_BYTES], 1 + _SALT_BYTES
        sealed_at = nonce_at + _NONCE_BYTES
        if record[:1] != _VERSION or len(record) <= sealed_at:
            raise SealError
        cipher = self._cipher if salt == self._salt else self._cipher_of(salt)
        try:
            plain = cipher.decrypt(record[nonce_at:sealed_at], record[sealed_at:], operation_key.encode())
        except InvalidTag:
            raise SealError from None
        api_key, client_agent, client_address, opened_at = orjson.loads(plain)
        return Caller(api_key, client_agent, client_address), opened_at

    def _cipher_of(self, salt: bytes) -> AESGCM:
        return AESGCM(self._derive(salt, b"caller", _KEY_BYTES))

    def _derive(self, salt: bytes, purpose: bytes, length: int) -> bytes:
        return HKDF(SHA256(), length, salt, b"horde-oai open requests " + purpose).derive(self._secret)
