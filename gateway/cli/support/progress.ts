/** A progress bar: redrawn in place on a terminal, one line at each tenth elsewhere (logs, CI). */
export interface ProgressOutput {
  write(text: string): unknown;
  readonly isTTY?: boolean | undefined;
}

const barChars = 30;

export class Progress {
  readonly #label: string;
  readonly #output: ProgressOutput;
  readonly #startMs = performance.now();
  #shownTenth = -1;
  #isDrawn = false;

  constructor(label: string, output: ProgressOutput = process.stderr) {
    this.#label = label;
    this.#output = output;
  }

  update(done: number, total: number, note = ""): void {
    const share = total === 0 ? 1 : Math.min(1, done / total);
    const filled = Math.round(share * barChars);
    const bar = "█".repeat(filled) + "░".repeat(barChars - filled);
    const line = `${this.#label} ${bar} ${done}/${total}${note && `  ${note}`}`;
    if (this.#output.isTTY) {
      this.#output.write(`\r\x1b[K${line}`);
      this.#isDrawn = true;
      return;
    }
    const tenth = Math.floor(share * 10);
    if (tenth === this.#shownTenth) return;
    this.#shownTenth = tenth;
    this.#output.write(`${line}\n`);
  }

  /** Ends the line; later output starts on its own. @returns milliseconds since the bar was made. */
  finish(): number {
    if (this.#isDrawn) this.#output.write("\n");
    this.#isDrawn = false;
    return performance.now() - this.#startMs;
  }
}
