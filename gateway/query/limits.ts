/**
 * Bounds on a span query, checked before anything runs. Where a chat request has the same field the bound is the
 * same: a test compares the two.
 */
export const queryLimits = {
  /** UTF-16 units of a query's text, and of all strings in it together: an alias in YAML may repeat a long one. */
  textChars: 8 * 1024 * 1024,
  /** Braces and brackets within each other. A node takes three at most (`{"plus": {"children": [`), filters add theirs. */
  jsonDepth: 256,
  /** Braces, brackets, commas and strings: many small values cost far more than their bytes. */
  jsonTokens: 250_000,
  /** UTF-16 units of YAML: its parser is far slower than that of JSON. */
  yamlChars: 256 * 1024,
  /** Nodes within each other. */
  treeDepth: 64,
  nodes: 10_000,
  /** Shown again by the rules: inputs of generates that expose both, and what all judges of a tree show alike. */
  copiedNodes: 32_768,
  childrenPerJoin: 4_096,
  /** Samples of one generate. */
  repeats: 256,
  /** Runs of the model: a repeat counts n times, a map once for each string. */
  generates: 1_024,
  /** Sum of max_tokens over all runs; a run that leaves it to the server counts as none. */
  askedTokens: 1_048_576,
  maxTokens: 131_072,
  maxTemperature: 2,
  maxPenalty: 2,
  minRepetitionPenalty: 0.01,
  maxRepetitionPenalty: 2,
  /** A larger top_k keeps every token of any vocabulary, like this one. */
  topK: 2 ** 20,
  /** Each sample takes a seed of its own, counted on from the given one. */
  maxSeed: Number.MAX_SAFE_INTEGER - 256,
  stopStrings: 4,
  stopChars: 256,
  modelChars: 512,
  idChars: 512,
  titleChars: 512,
  documentNameChars: 512,
  /** Retrieves and augments of one query: each is a search. */
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
  /** Nodes that are printed before a shared node is printed as a reference to where it stands already. */
  printedNodes: 20_000,
} as const;
