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
