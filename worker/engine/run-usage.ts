/** What became of a run's prompt tokens, each counted once: what is computed again after a preemption counts nothing. */
export class RunUsage {
  /** Prompt tokens that were found, and those that were computed and are kept under a key. */
  cachedTokens = 0;
  cacheWriteTokens = 0;
  private readonly promptTokens: number;
  /** Tokens before these places are counted: as found or computed, as kept. */
  private reached = 0;
  private kept = 0;

  constructor(promptTokens: number) {
    this.promptTokens = promptTokens;
  }

  /** Tokens before `end` are there: found, those that no step computed. @returns prompt tokens found now */
  found(end: number): number {
    this.kept = Math.max(this.kept, end);
    const fresh = this.reach(end);
    this.cachedTokens += fresh;
    return fresh;
  }

  /** Tokens before `end` are there; those that were not found are computed. */
  computed(end: number): void {
    this.reach(end);
  }

  /** The block of tokens start .. end - 1 is done with. @param stored it is found under its key from now on */
  keep(start: number, end: number, stored: boolean): void {
    const written = Math.min(end, this.promptTokens) - Math.max(start, this.kept);
    if (stored && written > 0) this.cacheWriteTokens += written;
    this.kept = Math.max(this.kept, end);
  }

  private reach(end: number): number {
    const fresh = Math.max(0, Math.min(end, this.promptTokens) - this.reached);
    this.reached += fresh;
    return fresh;
  }
}
