-- The statements of the shared store of agents, sessions and embeddings.

-- name: get
SELECT document FROM tidegate_agent WHERE namespace = %(namespace)s AND agent_id = %(agent_id)s

-- name: named
SELECT document FROM tidegate_agent WHERE namespace = %(namespace)s AND name = %(name)s ORDER BY agent_id

-- name: entries
SELECT document FROM tidegate_agent WHERE namespace = %(namespace)s AND agent_id > %(after)s ORDER BY agent_id
    LIMIT %(limit)s

-- name: add
INSERT INTO tidegate_agent (namespace, agent_id, name, document)
    VALUES (%(namespace)s, %(agent_id)s, %(name)s, %(document)s)
    ON CONFLICT DO NOTHING RETURNING 1

-- name: replace
UPDATE tidegate_agent SET name = %(name)s, document = %(document)s
    WHERE namespace = %(namespace)s AND agent_id = %(agent_id)s AND document = %(before)s RETURNING 1

-- name: remove
DELETE FROM tidegate_agent
    WHERE namespace = %(namespace)s AND agent_id = %(agent_id)s AND document = %(before)s RETURNING 1

-- The row of the session orders those who append at the same time; each then knows its turn's position.
-- name: append_turn
WITH place AS (
    INSERT INTO tidegate_session AS known (namespace, session, newest, at)
    VALUES (%(namespace)s, %(session)s, 1, %(at)s)
    ON CONFLICT (namespace, session) DO UPDATE SET newest = known.newest + 1, at = greatest(known.at, excluded.at)
    RETURNING newest
), added AS (
    INSERT INTO tidegate_turn (namespace, session, position, document)
    SELECT %(namespace)s, %(session)s, newest, %(document)s FROM place
)
DELETE FROM tidegate_turn
    WHERE namespace = %(namespace)s AND session = %(session)s
    AND position <= (SELECT newest FROM place) - %(keep)s

-- name: turns
SELECT document FROM tidegate_turn WHERE namespace = %(namespace)s AND session = %(session)s
    ORDER BY position DESC LIMIT %(limit)s

-- name: forget_sessions
DELETE FROM tidegate_session WHERE (namespace, session) IN
    (SELECT namespace, session FROM tidegate_session WHERE at < %(before)s LIMIT %(limit)s)
    RETURNING 1

-- name: vectors
SELECT digest, vector FROM tidegate_vector WHERE space = %(space)s AND digest = ANY(%(digests)s::bytea[])

-- name: put_vectors
INSERT INTO tidegate_vector (space, digest, vector)
    SELECT %(space)s, digest, vector FROM unnest(%(digests)s::bytea[], %(vectors)s::bytea[]) AS new (digest, vector)
    ORDER BY digest
    ON CONFLICT (space, digest) DO UPDATE SET vector = excluded.vector
