/**
 * What a person has chosen, in the address of the page, so that it can be shared and bookmarked.
 */

import * as source from "./source.js";

/**
 * @typedef {object} Chosen
 * @property {string} filter
 * @property {string} view beside the list; "" is the list
 * @property {string} topic of the records
 * @property {string} exchange its name; "" if none is open
 * @property {string} story its subject, `connection:3`; "" if none is told
 */

/** What an address shows in which nothing is chosen. */
const FIRST = "findings";
/** The list, where nothing else is chosen. */
const LIST = "exchanges";

/** @returns {Chosen} */
export function fromAddress() {
  const { search, hash } = location;
  const text = source.ADDRESS_MARK === "#" ? hash : search;
  const query = new URLSearchParams(text.slice(1));
  const of = (/** @type {string} */ name) => query.get(name) ?? "";
  return {
    filter: of("filter"),
    view: text.length > 1 ? of("view").replace(LIST, "") : FIRST,
    topic: of("topic"),
    exchange: of("exchange"),
    story: of("story"),
  };
}

/** @param {Chosen} chosen */
export function addressOf(chosen) {
  const query = new URLSearchParams(Object.entries(chosen).filter(([, value]) => value));
  const text = query.toString();
  return source.ADDRESS_MARK + (text || `view=${LIST}`);
}
