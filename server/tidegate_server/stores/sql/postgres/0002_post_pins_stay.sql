-- A pin is never deleted, only retired (§5 of the contract): a hand that slips in psql is stopped here. After the
-- roll-out, so that no older process depends on what is forbidden now.
CREATE FUNCTION tidegate_pins_stay() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'pins and their audit lines are never deleted; retire a pin with "tidegate pins retire"';
END
$$;

CREATE TRIGGER tidegate_pins_stay BEFORE DELETE OR TRUNCATE ON tidegate_pin
    FOR EACH STATEMENT EXECUTE FUNCTION tidegate_pins_stay();
CREATE TRIGGER tidegate_pins_stay BEFORE DELETE OR TRUNCATE ON tidegate_pin_audit
    FOR EACH STATEMENT EXECUTE FUNCTION tidegate_pins_stay();
