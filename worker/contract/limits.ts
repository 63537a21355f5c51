/**
 * Bounds on what crosses the border between processes. The gateway checks them to answer 400; the worker checks them
 * again, because it bounds every number from outside before work begins.
 */
export const limits = {
  /** Tokens of one request, prompt and completion together, whatever the model allows. */
  maxRequestTokens: 131_072,
  /** Runs (spans and pieces of the main chain) of one plan. */
  maxRuns: 4_096,
  /** Earlier runs that one run sees. */
  maxSegmentsPerRun: 4_096,
  /** Stop token ids beside the model's own. */
  maxStopTokens: 64,
  /** Completions of one request (`n`). */
  maxChoices: 16,
  /** Log-probabilities per token. */
  maxTopLogprobs: 20,
  /** Rules of a grammar, and symbols of all its alternatives. */
  maxGrammarRules: 16_384,
  maxGrammarSymbols: 65_536,
  maxGrammarIdChars: 128,
  /** Bytes of a mark around thinking, and tokens that end it. */
  maxThinkingMarkBytes: 256,
  maxThinkingEndTokens: 64,
  /** Steps between two choices that are made ahead. */
  maxRefreshSteps: 64,
  /** Characters of a request id made by the gateway. */
  maxRequestIdChars: 64,
} as const;
