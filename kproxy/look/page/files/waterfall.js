/**
 * The parts of an exchange's time: in kproxy, in a queue, waiting, in the broker, in a fault.
 */

import { element } from "./dom.js";

/** @type {Record<string, string>} what the parts mean, for the pointer */
export const MEANING = {
  proxy: "in kproxy", fault: "added by a fault rule", queued: "behind earlier requests",
  waiting: "waiting, as it asked for", service: "the broker's work",
};

/**
 * @param {import("./source.js").Row} row
 * @param {{begin: number, width: number}} span the time that the width of the bar stands for
 * @returns {HTMLElement}
 */
export function bar(row, span) {
  const made = element("span", { class: "bar", role: "gridcell" });
  let at = row.time_us - span.begin;
  for (const [what, us] of row.spans) {
    const part = element("i", { class: what });
    part.style.left = `${(100 * at) / span.width}%`;
    part.style.width = `max(1px, ${(100 * us) / span.width}%)`;
    made.append(part);
    at += us;
  }
  made.title = row.spans
    .map(([what, us]) => `${MEANING[what] ?? what} ${(us / 1000).toFixed(2)} ms`)
    .join(", ");
  return made;
}
