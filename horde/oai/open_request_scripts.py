"""What Redis does in one step for the open requests of fronts (decision 0044). Times are the server's milliseconds."""

from typing import Final

__all__ = ["ADOPT", "KEEP", "LEAVE"]

_NOW: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
"""

KEEP: Final = (
    _NOW
    + """
local leases, mine, front, lease, kept = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3]
if ARGV[4] == '1' then
    redis.call('DEL', mine)
elseif not redis.call('ZSCORE', leases, front) then
    return {0, now, 0}
end
redis.call('ZADD', leases, now + lease, front)
local removals = 6 + 2 * ARGV[5]
for i = 6, removals - 1, 2 do redis.call('HSET', mine, ARGV[i], ARGV[i + 1]) end
for i = removals, #ARGV do redis.call('HDEL', mine, ARGV[i]) end
redis.call('PEXPIRE', leases, kept)
redis.call('PEXPIRE', mine, kept)
return {1, now, redis.call('ZCOUNT', leases, '-inf', now)}
"""
)
"""Renews a front's lease and changes its records.

Keys: the leases, the front's records. Arguments: front, lease and keeping time in milliseconds, ``1`` to begin anew,
the number of records to write, operation keys and records to write, operation keys to remove. Answers whether the front
was known (else nothing was done: begin anew), the time, and how many leases have run out."""

ADOPT: Final = (
    _NOW
    + """
local leases, mine, front, kept, limit = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3]
local gone = redis.call('ZRANGEBYSCORE', leases, '-inf', now, 'LIMIT', 0, 1)[1]
if not gone or gone == front then return {} end
local theirs = ARGV[4] .. gone
local records = redis.call('HRANDFIELD', theirs, limit, 'WITHVALUES')
for i = 1, #records, 2 do
    redis.call('HSET', mine, records[i], records[i + 1])
    redis.call('HDEL', theirs, records[i])
end
if #records > 0 then redis.call('PEXPIRE', mine, kept) end
if redis.call('EXISTS', theirs) == 0 then redis.call('ZREM', leases, gone) end
return {gone, records}
"""
)
"""Moves records of one front whose lease has run out to another front.

Keys: the leases, the records of the front that takes them. Arguments: that front, keeping time in milliseconds, the
most records to move, the name of a front's records up to its id. Answers the front that is gone and what was moved."""

LEAVE: Final = """
local leases, mine, front = KEYS[1], KEYS[2], ARGV[1]
if redis.call('EXISTS', mine) == 0 then
    redis.call('ZREM', leases, front)
else
    redis.call('ZADD', leases, 'XX', 0, front)
end
return 1
"""
"""Ends a front's lease: what it leaves behind another front may take at once.

Keys: the leases, the front's records. Argument: the front."""
