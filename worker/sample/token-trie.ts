/**
 * The vocabulary as a trie over the bytes of its tokens, laid out in depth-first order: a walk is one pass over arrays
 * that skips what it does not enter.
 */
import type { VocabularyBytes } from "../contract/grammar.ts";

const noBytes = new Uint8Array(0);

export class TokenTrie {
  /** [N] of each node: its byte, how deep it stands (1 at the top), and the node after all that is below it. */
  private readonly nodeBytes: Uint8Array;
  private readonly depths: Uint16Array;
  private readonly skips: Int32Array;
  /** [N + 1] first of the tokens that end in a node, in `tokenIds`. */
  private readonly firstTokens: Int32Array;
  private readonly tokenIds: Int32Array;
  private readonly spellings: readonly Uint8Array[];

  constructor({ bytes, ends }: VocabularyBytes) {
    const spelled = Array.from(ends, (end, id) => bytes.subarray(id === 0 ? 0 : ends[id - 1], end));
    this.spellings = spelled;
    const order = [...spelled.keys()].filter((id) => spelled[id].length > 0);
    order.sort((a, b) => Buffer.compare(spelled[a], spelled[b]) || a - b);
    this.tokenIds = Int32Array.from(order);
    // Every node is entered by a byte of a token, so there are no more of them than bytes.
    this.nodeBytes = new Uint8Array(bytes.length);
    this.depths = new Uint16Array(bytes.length);
    this.skips = new Int32Array(bytes.length);
    const firstTokens = new Int32Array(bytes.length + 1);
    const path: number[] = [];
    let previous: Uint8Array = new Uint8Array(0);
    let count = 0;
    for (const [at, id] of order.entries()) {
      const token = spelled[id];
      let shared = 0;
      while (shared < previous.length && shared < token.length && previous[shared] === token[shared]) shared += 1;
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
  }

  /** Bytes of a token; none of a token that the vocabulary does not spell. */
  spelling(tokenId: number): Uint8Array {
    return this.spellings[tokenId] ?? noBytes;
  }

  /**
   * Visits every token whose bytes lead somewhere, from `start` on.
   * @param next state after a byte; below 0: there is none
   */
  walk(start: number, next: (state: number, byte: number) => number, visit: (tokenId: number) => void): void {
    const states = [start];
    const nodeCount = this.nodeBytes.length;
    for (let node = 0; node < nodeCount; ) {
      const depth = this.depths[node];
      const state = next(states[depth - 1], this.nodeBytes[node]);
      if (state < 0) {
        node = this.skips[node];
        continue;
      }
      states[depth] = state;
      for (let at = this.firstTokens[node]; at < this.tokenEnd(node); at++) visit(this.tokenIds[at]);
      node += 1;
    }
  }

  /** A node's own tokens stand before those of the nodes below it. */
  private tokenEnd(node: number): number {
    return this.firstTokens[node + 1];
  }
}
