/**
 * Questions to kproxy, by the part of the page that asks.
 *
 * Invariants: each part asks by itself, and has its own error; an answer to what is no longer asked
 * for is dropped, an error as well.
 */

import { Refused } from "./refused.js";

/** @typedef {"list" | "overview" | "exchange" | "story" | "view"} Part a part that asks kproxy */
/** @typedef {() => boolean} Current returns whether a part still asks what it asked then */

const AGAIN_MS = 250;

export class Questions {
  /** @type {{[part in Part]?: Refused}} */
  errors = {};
  /** @type {{[part in Part]: number}} the number of questions that each part has begun */
  #begun = { list: 0, overview: 0, exchange: 0, story: 0, view: 0 };
  #changed;

  /** @param {(what: string) => void} changed */
  constructor(changed) {
    this.#changed = changed;
  }

  /**
   * A part asks something else: what it asked before is no longer wanted.
   * @param {Part} part
   * @returns {Current}
   */
  begin(part) {
    this.#begun[part] += 1;
    this.withdraw(part);
    return this.current(part);
  }

  /** @param {Part} part whose error holds no longer */
  withdraw(part) {
    if (!this.errors[part]) return;
    delete this.errors[part];
    this.#changed("errors");
  }

  /**
   * @param {Part} part
   * @returns {Current}
   */
  current(part) {
    const question = this.#begun[part];
    return () => question === this.#begun[part];
  }

  /**
   * Ask once.
   * @template T
   * @param {Part} part
   * @param {Current} current
   * @param {() => Promise<T>} ask
   * @returns {Promise<T | null>} null if it was refused, or is no longer wanted
   */
  async answer(part, current, ask) {
    try {
      const found = await ask();
      return current() ? found : null;
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      if (current()) {
        this.errors[part] = error;
        this.#changed("errors");
        this.#changed(part);
      }
      return null;
    }
  }

  /**
   * Ask again and again, as long as somebody wants to know and it is not done.
   * @template {{done: boolean}} T
   * @param {Part} part
   * @param {Current} current
   * @param {() => Promise<T>} ask
   * @param {(found: T) => void | false} keep returns false if that changes nothing
   */
  async until(part, current, ask, keep) {
    for (;;) {
      const found = await this.answer(part, current, ask);
      if (!found) return;
      if (keep(found) !== false) this.#changed(part);
      if (found.done) return;
      await pause(AGAIN_MS);
      await visible();
      if (!current()) return;
    }
  }
}

/** @param {number} ms */
export const pause = (ms) => new Promise((resume) => setTimeout(resume, ms));

/** Wait until somebody can see the page. */
export async function visible() {
  while (document.hidden)
    await new Promise((resume) =>
      document.addEventListener("visibilitychange", resume, { once: true }),
    );
}
