/**
 * Chains of tokens, as the worker stores them (see worker/contract/messages.ts). A chain's own tokens come in runs,
 * each stored from a block's first slot; between its runs other chains may be nested:
 *
 *   positions of the chain    0      7        19     31   36
 *   parts                     [ run ][nested A][nested B][ run ]
 *   key of the next run       root → fold(·, A) → fold(·, B) → keys of the run's blocks
 *
 * A nested chain is stored by its own positions; here it stands at another place, so its position 0 stands at `offset`,
 * which may be negative. A chain with a parent goes on from the parent's end, in the parent's positions, and sees it.
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
  /** false: its tokens or keys depend on an output that is not known. */
  readonly known: boolean;
  /** Chains of one run whose tokens stand at token `at` of this run, and whose KV is copied. */
  readonly copies: readonly ChainCopy[];
  /** Last keys of spans whose text this run has as its own. */
  readonly quotes: readonly BlockKey[];
}

export interface ChainCopy {
  readonly chain: Chain;
  readonly at: number;
}

export interface NestedChain {
  readonly kind: "nested";
  readonly chain: Chain;
  /** Where the nested chain's position 0 stands in the surrounding chain's positions. */
  readonly offset: number;
}

export interface Chain {
  readonly parent: Chain | undefined;
  readonly parts: readonly (ChainRun | NestedChain)[];
  /** Position after its last token; it has `end - start` tokens, those of nested chains included. */
  readonly start: number;
  readonly end: number;
  /** Tokens at its begin that are not shown where it stands nested: what a template writes before the first message. */
  readonly hiddenTokens: number;
  /** Stands for all its content, in order, and for what it sees. */
  readonly endKey: BlockKey;
  readonly known: boolean;
  /** Share that is computed again of what its runs copy. */
  readonly recomputeRatio: number;
  /** Tokens that are known, of those it has: what it has at least. */
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

/** Tokens of a chain where it stands nested in another. */
function shownTokens(chain: Chain): number {
  return chain.end - chain.start - chain.hiddenTokens;
}

/** Root of the chain of an output: it goes on from the prompt that it answers, and is one piece of text with it. */
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
  /** What keying the tokens from the builder's `key` gives, if that was done before. */
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

  /** What the next run's first block is keyed from. */
  get key(): BlockKey {
    return this.#key;
  }

  /** Own tokens, closed. */
  addRun(
    tokenIds: Int32Array,
    { copies = [], quotes = [], unknownTokens = 0, blockKeys: keyed }: RunDetail = {},
  ): void {
    if (tokenIds.length === 0) return;
    const root = copies.length === 0 ? this.#key : blendRoot(this.#key, tokenIds, copies);
    // A stand-in's blocks are never looked up: one key tells it from others, and 131,072 tokens cost one hash.
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

  /** A chain that stands here, seen by what follows. */
  addNested(chain: Chain): void {
    const tokenCount = shownTokens(chain);
    if (tokenCount === 0) return;
    this.#parts.push({ kind: "nested", chain, offset: this.#end - chain.start - chain.hiddenTokens });
    this.#key = foldSpan(this.#key, chain.endKey);
    this.#end += tokenCount;
    this.#known &&= chain.known;
    this.#knownTokens += chain.knownTokens - chain.hiddenTokens;
  }

  /** @param hiddenTokens see Chain */
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
 * Root of a run with copies. Which of the copied tokens are computed again is decided over all of them together, so
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
