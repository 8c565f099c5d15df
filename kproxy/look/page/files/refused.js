/**
 * A refusal of kproxy, and why.
 */
export class Refused extends Error {
  /**
   * @param {string} what
   * @param {number} status of HTTP; 0 if there was no answer
   * @param {number | null} column where in a filter, from 1
   */
  constructor(what, status, column) {
    super(what);
    this.status = status;
    this.column = column;
  }
}
