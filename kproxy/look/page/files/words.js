/**
 * Texts that several views show: a request with its response, and times.
 */

import { element } from "./dom.js";

/**
 * A request and its response in words.
 * @param {import("./source.js").Row} row
 */
export function said(row) {
  const styled = row.response.map(([style, text]) => element("span", { class: style }, text));
  return [row.request, ...styled];
}

/**
 * A time of day, UTC.
 * @param {number} us since 1970
 */
export function clock(us) {
  return new Date(Math.floor(us / 1000)).toISOString().slice(11, 23);
}

const NAME_LENGTH_MAX = 9;

/**
 * The name of an exchange where there is little room: its number whole, and of the recording the
 * end, in which the files of a folder differ: `…0030#12`.
 * @param {string} name
 */
export function shortName(name) {
  const number = name.slice(name.lastIndexOf("#"));
  if (name.length <= NAME_LENGTH_MAX || name === number) return name;
  const room = Math.max(0, NAME_LENGTH_MAX - 1 - number.length);
  return `…${name.slice(name.length - number.length - room)}`;
}
