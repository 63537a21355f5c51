/** Every bound of the corpus side, named once. */
export const corpusLimits = {
  /** One uploaded file, and the multipart body around it. */
  maxUploadBytes: 32 * 1024 * 1024,
  maxUploadOverheadBytes: 64 * 1024,
  maxFilenameChars: 255,
  /** Text of a file that is to be ingested, in UTF-16 units. */
  maxTextChars: 8 * 1024 * 1024,
  /** Reading one PDF, DOCX or HTML document, in a process of its own. */
  maxPages: 5_000,
  maxUnpackedBytes: 256 * 1024 * 1024,
  maxParts: 4_096,
  maxExtractMs: 60_000,
  maxExtractBytes: 768 * 1024 * 1024,
  minChunkTokens: 16,
  maxChunkTokens: 4096,
  defaultChunkTokens: 256,
  maxCorporaPerTenant: 1_000,
  /** Files of one tenant that wait for ingestion. */
  maxPendingFilesPerTenant: 10_000,
  maxOpenJobsPerTenant: 100,
  maxPinsPerTenant: 10_000,
  /** Files named in one call. */
  maxFilesPerBatch: 2_000,
  maxNameChars: 256,
  maxDescriptionChars: 4_096,
  maxMetadataEntries: 16,
  maxMetadataKeyChars: 64,
  maxMetadataValueChars: 512,
  maxFilterNodes: 64,
  maxFilterDepth: 8,
  maxFilterValues: 256,
  maxQueryChars: 16_384,
  maxQueriesPerSearch: 16,
  maxSearchResults: 50,
  defaultSearchResults: 10,
  maxCorporaPerSearch: 16,
  maxPageItems: 100,
  defaultPageItems: 20,
} as const;
