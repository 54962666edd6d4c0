-- What every connection and every transaction begins with.

-- A server that cannot be written must not be read, either: what it lacks may have been stored elsewhere. SET would not
-- survive a pooler in transaction mode; this setting ends with the transaction.
-- name: guard
SELECT set_config('statement_timeout', %(milliseconds)s, true),
       pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean

-- name: recognise
SELECT (SELECT array_agg(name) FROM tidegate_migration),
       (SELECT value FROM tidegate_meta WHERE name = 'pin_key_check')

-- The first server under a key claims the database for it; whoever comes second reads what stands there.
-- name: claim
INSERT INTO tidegate_meta (name, value) VALUES ('pin_key_check', %(key_check)s)
    ON CONFLICT (name) DO UPDATE SET value = tidegate_meta.value
    RETURNING value

-- A write that changes nothing: whether the server takes writes again.
-- name: beat
UPDATE tidegate_meta SET value = value WHERE name = 'pin_key_check'
