-- How long a batch's result files last from when they are made, in seconds; null: they stay.
alter table batches add column output_lasts_seconds integer;
