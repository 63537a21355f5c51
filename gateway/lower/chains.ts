/**
 * Chains of tokens, as the worker stores them (see worker/contract/messages.ts). A chain's own tokens come in runs,
 * each stored from a block's first slot; between its runs other chains may be nested:
 *
 *   positions of the chain    0      7        19     31   36
 *   parts                     [ run ][nested A][nested B][ run ]
 *   key of the next run       root → fold(·, A) → fold(·, B) → keys of the run's blocks
 *
 * A nested chain's KV is stored at the chain's own positions. In the chain around it, its position 0 stands at
 * `offset`, which may be negative. A chain with a parent goes on from the parent's end, in the parent's positions, and
 * sees it.
 */
import { type ChainKind, foldSpan, nextBlockKey, rootKey, runBlockKeys } from "../../worker/contract/block-key.ts";
import type { ModelCard } from "../../worker/contract/model-card.ts";
import type { BlockKey, CacheSalt } from "../../worker/contract/units.ts";

export type ChainCard = Pick<ModelCard, "digest" | "blockTokens" | "contextTokens">;

export interface ChainRun {
  readonly kind: "run";
  readonly tokenIds: Int32Array;
  readonly position: number;
  readonly rootKey: BlockKey;
  readonly blockKeys: readonly BlockKey[];
  /** false: the run's tokens or keys depend on an output that is not known. */
  readonly known: boolean;
  /** Chains of one run each, whose tokens stand from token `at` of this run on, and whose KV is copied into it. */
  readonly copies: readonly ChainCopy[];
  /** Last keys of the spans whose text is part of this run's own text. */
  readonly quotes: readonly BlockKey[];
}

export interface ChainCopy {
  readonly chain: Chain;
  readonly at: number;
}

export interface NestedChain {
  readonly kind: "nested";
  readonly chain: Chain;
  /** The position, in the chain around it, where the nested chain's position 0 stands. */
  readonly offset: number;
}

export interface Chain {
  readonly parent: Chain | undefined;
  readonly parts: readonly (ChainRun | NestedChain)[];
  /** The chain's first position and the position after its last token. Tokens of nested chains count. */
  readonly start: number;
  readonly end: number;
  /**
   * Number of first tokens that are left out where it stands nested: what a template writes before the first message.
   */
  readonly hiddenTokens: number;
  /** Identifies everything in the chain, in order, and everything that it sees. */
  readonly endKey: BlockKey;
  readonly known: boolean;
  /** Share of the copied tokens that is computed again, 0 to 1. */
  readonly recomputeRatio: number;
  /** Number of the chain's tokens that are known; an unknown output may come out shorter than its stand-in. */
  readonly knownTokens: number;
  readonly spanId: string;
}

export interface ChainOrigin {
  readonly kind: ChainKind;
  readonly salt: CacheSalt;
  readonly spanId: string;
  readonly parent?: Chain | undefined;
  readonly recomputeRatio?: number | undefined;
}

/** Number of tokens that a chain adds where it stands nested in another. */
const shownTokens = (chain: Chain): number => chain.end - chain.start - chain.hiddenTokens;

/** Root key of an output's chain. The output continues the prompt that it answers, as one piece of text with it. */
export function outputRoot(card: ChainCard, salt: CacheSalt, prompt: Chain): BlockKey {
  return rootKey(card.digest, salt, "main", prompt.endKey);
}

/** A chain of one run whose keys are known already. */
export function chainOfSpan(
  span: { readonly tokenIds: Int32Array; readonly blockKeys: readonly BlockKey[]; readonly rootKey: BlockKey },
  spanId: string,
): Chain {
  const run: ChainRun = { kind: "run", ...span, position: 0, known: true, copies: [], quotes: [] };
  const end = span.tokenIds.length;
  const endKey = span.blockKeys.at(-1) ?? span.rootKey;
  const shown = { hiddenTokens: 0, known: true, recomputeRatio: 0, knownTokens: end };
  return { parent: undefined, parts: [run], start: 0, end, endKey, spanId, ...shown };
}

export interface RunDetail {
  readonly copies?: readonly ChainCopy[];
  readonly quotes?: readonly BlockKey[];
  /** Tokens that only stand in for an output that is not known. */
  readonly unknownTokens?: number;
  /** Block keys of the tokens, if the caller has computed them before from the builder's `key`. */
  readonly blockKeys?: readonly BlockKey[];
}

export class ChainBuilder {
  readonly #card: ChainCard;
  readonly #origin: ChainOrigin;
  readonly #parts: (ChainRun | NestedChain)[] = [];
  readonly #start: number;
  #end: number;
  #key: BlockKey;
  #known: boolean;
  #knownTokens = 0;

  constructor(card: ChainCard, origin: ChainOrigin) {
    this.#card = card;
    this.#origin = origin;
    this.#start = origin.parent?.end ?? 0;
    this.#end = this.#start;
    this.#key = rootKey(card.digest, origin.salt, origin.kind, origin.parent?.endKey);
    this.#known = origin.parent?.known ?? true;
  }

  /** The key from which the next run's first block key is computed. */
  get key(): BlockKey {
    return this.#key;
  }

  /** Adds a closed run of the chain's own tokens. */
  addRun(
    tokenIds: Int32Array,
    { copies = [], quotes = [], unknownTokens = 0, blockKeys: keyed }: RunDetail = {},
  ): void {
    if (tokenIds.length === 0) return;
    const root = copies.length === 0 ? this.#key : blendRoot(this.#key, tokenIds, copies);
    // Nobody looks up a stand-in's blocks. One key distinguishes it from others, and 131,072 tokens cost one hash.
    const keyedTokens = unknownTokens === 0 ? this.#card.blockTokens : tokenIds.length;
    const blockKeys = keyed ?? runBlockKeys(root, tokenIds, keyedTokens, true);
    const last = blockKeys.at(-1) ?? root;
    this.#known &&= unknownTokens === 0;
    const run = { tokenIds, position: this.#end, rootKey: root, blockKeys, known: this.#known, copies, quotes };
    this.#parts.push({ kind: "run", ...run });
    this.#key = last;
    this.#end += tokenIds.length;
    this.#knownTokens += tokenIds.length - unknownTokens;
  }

  /** Adds a nested chain at this place; the runs behind it see it. */
  addNested(chain: Chain): void {
    const tokenCount = shownTokens(chain);
    if (tokenCount === 0) return;
    this.#parts.push({ kind: "nested", chain, offset: this.#end - chain.start - chain.hiddenTokens });
    this.#key = foldSpan(this.#key, chain.endKey);
    this.#end += tokenCount;
    this.#known &&= chain.known;
    this.#knownTokens += chain.knownTokens - chain.hiddenTokens;
  }

  /** @param hiddenTokens as in Chain */
  finish(hiddenTokens = 0): Chain {
    const { parent, recomputeRatio = 0, spanId } = this.#origin;
    return {
      parent,
      parts: this.#parts,
      start: this.#start,
      end: this.#end,
      hiddenTokens,
      endKey: this.#key,
      known: this.#known,
      recomputeRatio,
      knownTokens: this.#knownTokens,
      spanId,
    };
  }
}

/**
 * Root key of a run with copies. The worker decides over all copied tokens together which of them it computes again. So
 * the KV of the first block depends on everything up to the end of the last copy, and on where each copy comes from.
 */
function blendRoot(key: BlockKey, tokenIds: Int32Array, copies: readonly ChainCopy[]): BlockKey {
  const folded = copies.reduce((folded, { chain }) => foldSpan(folded, chain.endKey), key);
  const placed = nextBlockKey(
    folded,
    Int32Array.from(copies, ({ at }) => at),
  );
  const copiedEnd = copies.reduce((end, { chain, at }) => Math.max(end, at + chain.end - chain.start), 0);
  return nextBlockKey(placed, tokenIds.subarray(0, copiedEnd));
}
