-- Each row has got its checksum.
DROP INDEX {schema}.entries_unsummed;
DROP INDEX {schema}.records_unsummed;
DROP INDEX {schema}.ids_unsummed;
ALTER TABLE {schema}.entries ALTER COLUMN life SET NOT NULL, ALTER COLUMN sum SET NOT NULL;
ALTER TABLE {schema}.records ALTER COLUMN life SET NOT NULL, ALTER COLUMN sum SET NOT NULL;
ALTER TABLE {schema}.ids ALTER COLUMN life SET NOT NULL, ALTER COLUMN sum SET NOT NULL;
