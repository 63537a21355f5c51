/** Every bound of the corpus side, named once. */
export const corpusLimits = {
  /** Bytes of one uploaded file, and of the multipart body around it. */
  maxUploadBytes: 32 * 1024 * 1024,
  maxUploadOverheadBytes: 64 * 1024,
  maxFilenameChars: 255,
  maxMediaTypeChars: 128,
  /**
   * Uploads in parts of one tenant: how many may be open, how many ended ones stay readable, and how many parts each
   * may have.
   */
  maxOpenUploadsPerTenant: 32,
  keptUploadsPerTenant: 1_000,
  maxPartsPerUpload: 1_000,
  uploadMs: 3_600_000,
  /** How long a file and an unused vector store may be made to last, as OpenAI's API has it: an hour to 30 days, a day to a year. */
  minFileSeconds: 3_600,
  maxFileSeconds: 2_592_000,
  maxStoreDays: 365,
  /** Text of a file that is to be ingested, in UTF-16 units. */
  maxTextChars: 8 * 1024 * 1024,
  /** Bounds for reading one PDF, DOCX or HTML document, in a process of its own. */
  maxPages: 5_000,
  maxUnpackedBytes: 256 * 1024 * 1024,
  maxParts: 4_096,
  maxExtractMs: 60_000,
  maxExtractBytes: 768 * 1024 * 1024,
  /**
   * A document that exceeds one of these bounds makes way for other tenants' documents and waits for the lanes of large
   * files.
   */
  quickDocumentMs: 3_000,
  quickExtractBytes: 256 * 1024 * 1024,
  quickTextChars: 256 * 1024,
  /**
   * A document of a prompt: how long it may take to read; how many are read, and how many requests wait for that, of all
   * tenants and of one; bytes of texts that are remembered.
   */
  promptDocumentMs: 20_000,
  promptReaders: 4,
  promptReadersPerTenant: 2,
  promptsWaiting: 64,
  promptsWaitingPerTenant: 16,
  promptTextBytes: 32 * 1024 * 1024,
  /** Milliseconds for splitting and storing one file's text, without the time of other work in between. */
  maxIngestMs: 600_000,
  minChunkTokens: 16,
  maxChunkTokens: 4096,
  defaultChunkTokens: 256,
  maxCorporaPerTenant: 1_000,
  /** Files of one tenant that wait for ingestion. */
  maxPendingFilesPerTenant: 10_000,
  maxSourcesPerTenant: 100,
  /** How often a source may be read by itself, in minutes: every quarter of an hour to every 30 days. */
  minSourceMinutes: 15,
  maxSourceMinutes: 43_200,
  maxSourceUrlChars: 2_048,
  /** Pages of a web site or objects of a bucket, and links from the first page on. */
  maxSourceFiles: 10_000,
  defaultSourcePages: 1_000,
  maxSourceDepth: 100,
  defaultSourceDepth: 8,
  /** Bytes that one run reads of a source, and milliseconds for it. The next run goes on. */
  maxSourceBytes: 512 * 1024 * 1024,
  maxSourceMs: 600_000,
  /** Files that a run's outcome names with the reason why they failed. */
  maxSourceFailures: 20,
  maxFailureChars: 512,
  maxOpenJobsPerTenant: 100,
  maxPinsPerTenant: 10_000,
  /** The most files that one call may name. */
  maxFilesPerBatch: 2_000,
  maxNameChars: 256,
  maxDescriptionChars: 4_096,
  maxMetadataEntries: 16,
  maxMetadataKeyChars: 64,
  maxMetadataValueChars: 512,
  maxFilterNodes: 64,
  maxFilterDepth: 8,
  /** Values of one list, and of all lists of one filter together. */
  maxFilterValues: 256,
  maxFilterValuesInAll: 1_024,
  maxQueryChars: 16_384,
  maxQueriesPerSearch: 16,
  maxSearchResults: 50,
  defaultSearchResults: 10,
  /** How many of the best hits a cross-encoder scores; more, when a search wants more. */
  rerankedHits: 20,
  maxCorporaPerSearch: 16,
  /**
   * Milliseconds of one search, from when it begins. It ends what is meant to be slow: a search of four stores of 3.5 MB by
   * 16,000 characters takes a tenth of a second.
   */
  maxSearchMs: 10_000,
  /** Fragments that are known to have been read once; at their second use they are kept in files. */
  readFragments: 65_536,
  /** Fragments that wait to be looked at for it. */
  usedFragmentsInLine: 4_096,
  /** Milliseconds that a search waits for a thread, behind the tenant's own searches and in turn with others'. */
  maxSearchWaitMs: 60_000,
  maxPageItems: 100,
  /** The largest page of a list of files, since clients often list all of them. */
  maxFilePageItems: 1_000,
  defaultPageItems: 20,
  /**
   * Tokens of one page of fragments. Each fragment of a page is lowered to a span, to find out which workers hold it. A
   * page has at least one.
   */
  maxFragmentPageTokens: 65_536,
} as const;
