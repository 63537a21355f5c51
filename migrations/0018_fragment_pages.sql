-- The pages that a fragment stands on, as JSON: where each begins in its text, its number, its name. Null: the file has none.
alter table fragments add column pages text;
