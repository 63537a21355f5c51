/**
 * Bounds on a span query, which are checked before anything runs. Where a chat request has the same field, the bound is
 * the same; a test compares the two.
 */
export const queryLimits = {
  /** UTF-16 units of a query's text, and of all its strings together, since an alias in YAML may repeat a long one. */
  textChars: 8 * 1024 * 1024,
  /**
   * Deepest nesting of braces and brackets. A node takes three at most (`{"plus": {"children": [`), filters add theirs.
   */
  jsonDepth: 256,
  /** Number of braces, brackets, commas and strings, since many small values cost far more than their bytes. */
  jsonTokens: 250_000,
  /** UTF-16 units of a YAML text. Its parser is far slower than that of JSON. */
  yamlChars: 256 * 1024,
  /** Deepest nesting of nodes. */
  treeDepth: 64,
  nodes: 10_000,
  /** Nodes that rules show again: inputs of generates that expose both, and the parts shown by all judges of a tree. */
  copiedNodes: 32_768,
  childrenPerJoin: 4_096,
  /** Most samples of one generate. */
  repeats: 256,
  /** Most runs of the model. A repeat counts n times, a map once for each string. */
  generates: 1_024,
  /** Greatest sum of max_tokens over all runs. A run without max_tokens counts as none. */
  askedTokens: 1_048_576,
  maxTokens: 131_072,
  leastSparseTokens: 16,
  maxTemperature: 2,
  maxPenalty: 2,
  minRepetitionPenalty: 0.01,
  maxRepetitionPenalty: 2,
  /** A larger top_k keeps every token of any vocabulary, as this one does. */
  topK: 2 ** 20,
  /** Each sample takes a seed of its own, counting up from the given one. */
  maxSeed: Number.MAX_SAFE_INTEGER - 256,
  stopStrings: 16,
  stopChars: 256,
  modelChars: 512,
  idChars: 512,
  titleChars: 512,
  documentNameChars: 512,
  /** Most retrieves and augments of one query, since each is a search. */
  retrieves: 64,
  vectorStoresPerRetrieve: 16,
  searchChars: 16_384,
  retrievedFragments: 50,
  defaultRetrievedFragments: 10,
  filterDepth: 16,
  filterValues: 1_024,
  filterChars: 4_096,
  minReduceArity: 2,
  maxReduceArity: 1_024,
  /** Nodes to print before each shared node is printed as a reference to the place where it was printed already. */
  printedNodes: 20_000,
} as const;
