/**
 * The vocabulary as tries over the bytes of its tokens, laid out in depth-first order: a walk is one pass over arrays
 * that skips what it does not enter (mask-walk.ts). Plain text (plain-text.ts) has tries of its own, those of longer
 * tokens first, behind all others: where any plain text may come, the walk ends before them and takes their tokens as a
 * whole.
 */
import type { VocabularyBytes } from "../contract/grammar.ts";
import { plainCharacters, plainLengths } from "./plain-text.ts";

const noBytes = new Uint8Array(0);
/** With a group they are a number that a double holds. */
const keyBytes = 6;

/** Tokens of plain text of so many characters at most. */
export interface PlainTokens {
  readonly mostCharacters: number;
  /** One bit a token, as in a mask. */
  readonly mask: Int32Array;
  /** The node that their tries begin with, and end all others. */
  readonly firstNode: number;
}

export class TokenTrie {
  /** [N] of each node: its byte, how deep it stands (1 at the top), and the node after all that is below it. */
  readonly nodeBytes: Uint8Array;
  readonly depths: Uint16Array;
  readonly skips: Int32Array;
  /** [N + 1] first of the tokens that end in a node, in `tokenIds`; those of the nodes below it come after its own. */
  readonly firstTokens: Int32Array;
  readonly tokenIds: Int32Array;
  readonly maxDepth: number;
  /** In the order of `plainLengths`. */
  readonly plain: readonly PlainTokens[];
  readonly #vocabulary: VocabularyBytes;

  constructor(vocabulary: VocabularyBytes) {
    const { bytes, ends } = vocabulary;
    this.#vocabulary = vocabulary;
    this.maxDepth = ends.reduce((most, end, id) => Math.max(most, end - (ends[id - 1] ?? 0)), 0);
    const groups = Uint8Array.from(ends, (_, id) => groupOf(this.spelling(id)));
    const order = this.#sortedTokens(groups);
    this.tokenIds = order;
    // Every node is entered by a byte of a token, so there are no more of them than bytes.
    this.nodeBytes = new Uint8Array(bytes.length);
    this.depths = new Uint16Array(bytes.length);
    this.skips = new Int32Array(bytes.length);
    const firstTokens = new Int32Array(bytes.length + 1);
    const firstNodes = plainLengths.map(() => -1);
    const path: number[] = [];
    let previous: Uint8Array = noBytes;
    let group = 0;
    let count = 0;
    for (const [at, id] of order.entries()) {
      const token = this.spelling(id);
      const isNewGroup = groups[id] !== group;
      for (; group < groups[id]; group++) firstNodes[group] = count;
      const shared = isNewGroup ? 0 : sharedLength(previous, token);
      for (const node of path.splice(shared)) this.skips[node] = count;
      for (let depth = shared; depth < token.length; depth++) {
        path.push(count);
        this.nodeBytes[count] = token[depth];
        this.depths[count] = depth + 1;
        firstTokens[count] = at;
        count += 1;
      }
      previous = token;
    }
    for (const node of path) this.skips[node] = count;
    firstTokens[count] = order.length;
    this.firstTokens = firstTokens.slice(0, count + 1);
    this.nodeBytes = this.nodeBytes.slice(0, count);
    this.depths = this.depths.slice(0, count);
    this.skips = this.skips.slice(0, count);
    this.plain = plainLengths.map((mostCharacters, index) => {
      const firstNode = firstNodes[index] < 0 ? count : firstNodes[index];
      return { mostCharacters, firstNode, mask: this.#maskFrom(firstNode, ends.length) };
    });
  }

  get nodeCount(): number {
    return this.nodeBytes.length;
  }

  /** Bytes of a token; none of a token that the vocabulary does not spell. */
  spelling(tokenId: number): Uint8Array {
    const { bytes, ends } = this.#vocabulary;
    return bytes.subarray(ends[tokenId - 1] ?? 0, ends[tokenId] ?? 0);
  }

  /** Tokens that are spelled, by group and then by their bytes. */
  #sortedTokens(groups: Uint8Array): Int32Array {
    // Most tokens differ in their first bytes, which make one number with the group.
    const keys = Float64Array.from(groups, (group, id) => {
      const token = this.spelling(id);
      let key = group;
      for (let i = 0; i < keyBytes; i++) key = key * 256 + (token[i] ?? 0);
      return key;
    });
    const spelled = Int32Array.from(groups.keys()).filter((id) => this.spelling(id).length > 0);
    return spelled.sort((a, b) => keys[a] - keys[b] || Buffer.compare(this.spelling(a), this.spelling(b)) || a - b);
  }

  /** All tokens of this node and those after it. */
  #maskFrom(firstNode: number, tokenCount: number): Int32Array {
    const mask = new Int32Array(Math.ceil(tokenCount / 32));
    for (const tokenId of this.tokenIds.subarray(this.firstTokens[firstNode]))
      mask[tokenId >> 5] |= 1 << (tokenId & 31);
    return mask;
  }
}

/** 0: not plain, or too long; then 1 for the longest, and so on. */
function groupOf(token: Uint8Array): number {
  const count = plainCharacters(token);
  if (count === undefined || count > plainLengths[0]) return 0;
  return plainLengths.findLastIndex((most) => count <= most) + 1;
}

function sharedLength(a: Uint8Array, b: Uint8Array): number {
  let shared = 0;
  while (shared < a.length && shared < b.length && a[shared] === b[shared]) shared += 1;
  return shared;
}
