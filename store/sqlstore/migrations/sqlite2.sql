-- The tables of version 1 had no checksums. Their rows move to the tables of version 3 in batches. Processes of earlier
-- versions fail at once, since the tables have other names.
DROP INDEX entries_expires;
DROP INDEX records_stream;
DROP INDEX records_expires;
DROP INDEX ids_expires;
ALTER TABLE state RENAME TO old_state;
ALTER TABLE entries RENAME TO old_entries;
ALTER TABLE records RENAME TO old_records;
ALTER TABLE ids RENAME TO old_ids;
