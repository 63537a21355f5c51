/** Every bound of the corpus side, named once. */
export const corpusLimits = {
  /** One uploaded file, and the multipart body around it. */
  maxUploadBytes: 32 * 1024 * 1024,
  maxUploadOverheadBytes: 64 * 1024,
  maxFilenameChars: 255,
  maxMediaTypeChars: 128,
  /** Uploads in parts of one tenant that have not ended, and those that can still be asked about; parts of each. */
  maxOpenUploadsPerTenant: 32,
  keptUploadsPerTenant: 1_000,
  maxPartsPerUpload: 1_000,
  uploadMs: 3_600_000,
  /** Text of a file that is to be ingested, in UTF-16 units. */
  maxTextChars: 8 * 1024 * 1024,
  /** Reading one PDF, DOCX or HTML document, in a process of its own. */
  maxPages: 5_000,
  maxUnpackedBytes: 256 * 1024 * 1024,
  maxParts: 4_096,
  maxExtractMs: 60_000,
  maxExtractBytes: 768 * 1024 * 1024,
  /** What a document may take before it makes way for other tenants' and waits for its turn among the large ones. */
  quickDocumentMs: 3_000,
  quickExtractBytes: 256 * 1024 * 1024,
  quickTextChars: 256 * 1024,
  /** Splitting and storing one file's text, without the time in which others had their turns. */
  maxIngestMs: 600_000,
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
  /** Values of one list, and of all lists of one filter. */
  maxFilterValues: 256,
  maxFilterValuesInAll: 1_024,
  maxQueryChars: 16_384,
  maxQueriesPerSearch: 16,
  maxSearchResults: 50,
  defaultSearchResults: 10,
  maxCorporaPerSearch: 16,
  maxPageItems: 100,
  /** Of files, which clients list whole. */
  maxFilePageItems: 1_000,
  defaultPageItems: 20,
  /** Tokens of a page of fragments, each of which is made a span to tell what is held of it; a page has one at least. */
  maxFragmentPageTokens: 65_536,
} as const;
