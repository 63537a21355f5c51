/** Makes the constraints of requests, once the vocabulary has been told. */
import type { VocabularyBytes } from "../contract/grammar.ts";
import type { SubmitMessage } from "../contract/messages.ts";
import { GrammarConstraint, type TokenConstraint } from "../sample/constraint.ts";
import { TokenTrie } from "../sample/token-trie.ts";

export class Constraints {
  private readonly vocabSize: number;
  private trie: TokenTrie | undefined;

  constructor(vocabSize: number) {
    this.vocabSize = vocabSize;
  }

  /** How tokens are spelled: requests with a grammar are refused before it is told. */
  setVocabulary(vocabulary: VocabularyBytes): void {
    this.trie = new TokenTrie(vocabulary);
  }

  /** Why this request's completion cannot be constrained as it asks. */
  fault({ params }: SubmitMessage): string | undefined {
    const lacks = params.grammar !== undefined && this.trie === undefined;
    return lacks ? "a grammar is given, and the vocabulary is not known" : undefined;
  }

  /** undefined: the request asks for none. @throws RangeError when the grammar recurs on the left */
  of({ params }: SubmitMessage, stopTokenIds: readonly number[]): TokenConstraint | undefined {
    if (params.grammar === undefined || this.trie === undefined) return undefined;
    return new GrammarConstraint(params.grammar, this.trie, this.vocabSize, stopTokenIds);
  }
}
