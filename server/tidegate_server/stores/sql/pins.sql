-- The statements of the embedded store of pins.

-- name: find
SELECT pin_id, record, checksum FROM pin WHERE pin_id = :pin_id

-- name: witnessed
SELECT 1 FROM witness WHERE pin_id = :pin_id

-- Walks every row instead of searching: a damaged id misleads the search for its neighbours. The + keeps the planner
-- from using the key.
-- name: find_by_walking
SELECT pin_id, record, checksum FROM pin WHERE +pin_id = :pin_id

-- name: insert
INSERT INTO pin (pin_id, record, checksum) VALUES (:pin_id, :record, :checksum)

-- name: insert_witness
INSERT INTO witness (pin_id) VALUES (:pin_id)

-- name: page
SELECT pin_id, record, checksum FROM pin WHERE pin_id > :after ORDER BY pin_id LIMIT :limit

-- name: all
SELECT pin_id, record, checksum FROM pin

-- name: all_witnesses
SELECT pin_id FROM witness

-- name: unwitnessed
SELECT pin_id, record, checksum FROM pin WHERE pin_id NOT IN (SELECT pin_id FROM witness)

-- name: replace
UPDATE pin SET record = :record, checksum = :checksum WHERE pin_id = :pin_id

-- name: insert_audit
INSERT INTO audit (pin_id, who, at, why) VALUES (:pin_id, :who, :at, :why)
