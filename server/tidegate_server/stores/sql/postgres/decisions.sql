-- The statements of the shared decision log.

-- Records, and the tallies of those that were not stored before, in one step.
-- name: write
WITH added AS (
    INSERT INTO tidegate_decision
        (decision_id, decide_time, kind, subject, outcome, reason, session, namespace, detail)
    SELECT decision_id, decide_time, kind, subject, outcome, reason, session, namespace, detail
    FROM unnest(
        %(decision_id)s::text[], %(decide_time)s::bigint[], %(kind)s::text[], %(subject)s::text[], %(outcome)s::text[],
        %(reason)s::text[], %(session)s::text[], %(namespace)s::text[], %(detail)s::text[]
    ) WITH ORDINALITY AS new
        (decision_id, decide_time, kind, subject, outcome, reason, session, namespace, detail, place)
    ORDER BY place
    ON CONFLICT (decision_id) DO NOTHING
    RETURNING decision_id
)
INSERT INTO tidegate_total AS total (namespace, day, category, key, figure, value)
    SELECT t.namespace, t.day, t.category, t.key, t.figure, sum(t.value)
    FROM unnest(
        %(tally_of)s::text[], %(tally_namespace)s::text[], %(tally_day)s::bigint[], %(tally_category)s::text[],
        %(tally_key)s::text[], %(tally_figure)s::text[], %(tally_value)s::double precision[]
    ) AS t (decision_id, namespace, day, category, key, figure, value)
    JOIN added USING (decision_id)
    GROUP BY 1, 2, 3, 4, 5
    ORDER BY 1, 2, 3, 4, 5
    ON CONFLICT (namespace, day, category, key, figure) DO UPDATE SET value = total.value + excluded.value

-- name: list
SELECT sequence, decision_id, decide_time, kind, subject, outcome, reason, session, namespace, detail
    FROM tidegate_decision
    WHERE namespace = %(namespace)s
    AND (%(before)s::bigint = 0 OR sequence < %(before)s::bigint)
    AND (%(session)s::text = '' OR session = %(session)s::text)
    AND (%(subject)s::text = '' OR subject = %(subject)s::text)
    AND (%(kind)s::text = '' OR kind = %(kind)s::text)
    AND (%(decision_id)s::text = '' OR decision_id = %(decision_id)s::text)
    ORDER BY sequence DESC LIMIT %(limit)s

-- name: totals
SELECT category, key, figure, sum(value) FROM tidegate_total WHERE namespace = %(namespace)s
    GROUP BY category, key, figure ORDER BY category, key, figure

-- name: purge
WITH days AS (
    DELETE FROM tidegate_total WHERE day < %(day)s
)
DELETE FROM tidegate_decision WHERE sequence IN
    (SELECT sequence FROM tidegate_decision WHERE decide_time < %(before)s LIMIT %(limit)s)
    RETURNING 1
