from pathlib import Path

import pytest

from horde.native.moderation import PromptFilter, load_patterns
from horde.native.settings import SettingsError, load_settings
from tests.support.native_server import running_native


def _messages(text: str) -> list[dict[str, object]]:
    return [{"role": "user", "content": [{"type": "text", "text": text}]}]


@pytest.mark.rule("NAT-17")
async def test_a_prompt_that_a_pattern_is_found_in_is_refused(migrated_database_url: str, tmp_path: Path) -> None:
    patterns = tmp_path / "patterns.txt"
    patterns.write_text("# what we refuse\n\nbad\\s+word\n")
    async with running_native(migrated_database_url, moderation_patterns_file=patterns) as native:
        client = await native.user("client")

        refused = await client.submit(messages=_messages("A BAD  word."))

        assert (refused.status, refused.rc) == (403, "CorruptPrompt")
        assert (await client.submit(messages=_messages("A good word."))).rc == "UnknownChatModel"
        assert await native.pool.fetchval("SELECT count(*) FROM chat_requests") == 0


@pytest.mark.parametrize("fails_open", [True, False])
async def test_a_prompt_that_takes_too_long_is_refused_unless_the_filter_fails_open(
    tmp_path: Path, *, fails_open: bool
) -> None:
    path = tmp_path / "patterns.txt"
    path.write_text("(a|a|aa)+$")
    prompt_filter = PromptFilter(load_patterns(path), seconds=0.01, fails_open=fails_open)

    assert await prompt_filter.refuses(["a" * 60 + "b"]) is not fails_open


async def test_a_line_that_is_no_pattern_is_named_at_start(tmp_path: Path) -> None:
    path = tmp_path / "patterns.txt"
    path.write_text("fine\n(open\n")
    environment = {"HORDE_NATIVE_DATABASE_URL": "postgresql://x", "HORDE_NATIVE_MODERATION_PATTERNS_FILE": str(path)}

    with pytest.raises(SettingsError, match=r"HORDE_NATIVE_MODERATION_PATTERNS_FILE is wrong.*line 2"):
        load_settings(environment)
