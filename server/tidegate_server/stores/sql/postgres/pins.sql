-- The statements of the shared store of pins.

-- name: find
SELECT pin_id, record, checksum FROM tidegate_pin WHERE pin_id = ANY(%(pin_ids)s::bytea[])

-- All new pins of a moment in one statement, and for each what is stored now. DO NOTHING with a SELECT would miss a
-- winner that commits while we wait for it; DO UPDATE waits for it, locks it and returns it as it is. Everybody inserts
-- in the order of the ids, so that two batches never wait for each other.
-- name: create
INSERT INTO tidegate_pin AS stored (pin_id, record, checksum)
    SELECT pin_id, record, checksum
    FROM unnest(%(pin_ids)s::bytea[], %(records)s::bytea[], %(checksums)s::bytea[]) AS new (pin_id, record, checksum)
    ORDER BY pin_id
    ON CONFLICT (pin_id) DO UPDATE SET losers = stored.losers + 1
    RETURNING pin_id, record, checksum, losers = 0

-- name: page
SELECT pin_id, record, checksum FROM tidegate_pin WHERE pin_id > %(after)s ORDER BY pin_id LIMIT %(limit)s

-- Tombstones with their audit lines, one step. A pin that somebody else retired meanwhile has another checksum by now
-- and is left alone, so that each retirement has one line.
-- name: retire
WITH tombstone AS (
    SELECT * FROM unnest(%(pin_ids)s::bytea[], %(records)s::bytea[], %(checksums)s::bytea[], %(before)s::bytea[])
        AS t (pin_id, record, checksum, before)
), locked AS (
    SELECT pin.pin_id FROM tidegate_pin AS pin JOIN tombstone USING (pin_id)
    WHERE pin.checksum = tombstone.before ORDER BY pin.pin_id FOR UPDATE OF pin
), retired AS (
    UPDATE tidegate_pin AS pin SET record = tombstone.record, checksum = tombstone.checksum
    FROM tombstone JOIN locked USING (pin_id)
    WHERE pin.pin_id = tombstone.pin_id AND pin.checksum = tombstone.before
    RETURNING pin.pin_id
), audited AS (
    INSERT INTO tidegate_pin_audit (pin_id, who, at, why)
    SELECT pin_id, %(who)s, %(at)s, %(why)s FROM retired ORDER BY pin_id
)
SELECT pin_id FROM retired

-- What was retired since a horizon, and the next horizon: every transaction below it had ended when this was read. The
-- timeline changes when another server was promoted; then neither numbers nor what was read before can be relied on.
-- name: retired_since
SELECT pg_snapshot_xmin(pg_current_snapshot())::text,
       left(pg_walfile_name(pg_current_wal_lsn()), 8),
       (SELECT coalesce(array_agg(pin_id), '{}') FROM tidegate_pin_audit WHERE writer >= %(horizon)s::text::xid8)
