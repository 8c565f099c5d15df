/**
 * The place in the list that the keyboard moves: that of the open exchange, if one is open.
 *
 * Invariant: either it has a place, or it looks for one, or neither.
 */

export class Cursor {
  /** The row in the list; -1: none, or not known yet. */
  place = -1;
  /** The name of the exchange whose place is looked for; "" for none. */
  sought = "";
  #changed;

  /** @param {(what: string) => void} changed */
  constructor(changed) {
    this.#changed = changed;
  }

  /** @param {number} place */
  point(place) {
    this.place = place;
    this.sought = "";
    this.#changed("cursor");
  }

  /**
   * Look for an exchange in the list.
   * @param {string} name "" for none
   * @param {number} place its place, if that is known; else -1
   */
  seek(name, place) {
    this.place = -1;
    this.sought = name;
    if (place >= 0) this.point(place);
  }

  /** Look for nothing any more. */
  rest() {
    this.sought = "";
  }

  /**
   * Take an answer on the exchange that was looked for when it was asked for.
   * @param {string} name
   * @param {import("./source.js").Rows} found
   */
  found(name, { place, done, grows }) {
    if (!name || name !== this.sought) return;
    if (place !== null) this.point(place);
    else if (done || grows) this.rest(); // the filter leaves it out
  }
}
