/**
 * The live speed of one answer, from the token counts of its deltas.
 */

/** Speed is taken over this stretch, long enough to be calm and short enough to be live. */
const WINDOW_MS = 4000;

export class Meter {
  /** @type {{at: number, tokens: number}[]} running totals, oldest first */
  #marks = [];
  #weightedBatch = 0;
  tokens = 0;
  /** Answers in the latest batch, this one included; 0 before the first. */
  batchSize = 0;

  /**
   * @param {number} tokens in this delta
   * @param {number} batchSize
   * @param {number} now milliseconds of a monotonic clock
   */
  add(tokens, batchSize, now) {
    this.tokens += tokens;
    this.batchSize = batchSize;
    this.#weightedBatch += tokens * batchSize;
    this.#marks.push({ at: now, tokens: this.tokens });
    while (this.#marks.length > 2 && this.#marks[1].at < now - WINDOW_MS) this.#marks.shift();
  }

  /** @returns {number|null} tokens per second; null until two deltas lie apart in time */
  get tokensPerSecond() {
    const first = this.#marks[0];
    const last = this.#marks[this.#marks.length - 1];
    if (first === undefined || last.at - first.at < 100) return null;
    return ((last.tokens - first.tokens) * 1000) / (last.at - first.at);
  }

  /** @returns {number|null} mean batch size over the tokens so far */
  get meanBatchSize() {
    return this.tokens > 0 && this.#weightedBatch > 0 ? this.#weightedBatch / this.tokens : null;
  }
}
