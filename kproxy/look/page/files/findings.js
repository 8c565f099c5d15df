/**
 * What `kproxy why` finds in the recordings, the worst first: each with what proves it, what leads
 * to its exchanges, and the command. It grows with the recording.
 */

import { button, element } from "./dom.js";
import { parts } from "./story.js";

/** @typedef {import("./store.js").Store} Store */

/**
 * @param {Store} store
 * @param {import("./source.js").Findings} data
 * @returns {Node[]}
 */
export function findings(store, { findings: found = [], exchanges = 0, behind = 0, error }) {
  const number = (/** @type {number} */ count) => count.toLocaleString("en");
  const part = `behind by ${number(behind)}: this is what the first ${number(exchanges)} show`;
  const whole = `found in ${number(exchanges)} exchange${exchanges === 1 ? "" : "s"}`;
  const filter = store.chosen.filter ? ", whether they match the filter or not" : "";
  if (behind && !exchanges && !error) return [element("p", {}, "reading …")];
  const state = behind ? element("p", { class: "partial" }, part)
    : element("p", { class: "facts" }, whole + filter);
  const made = error ? [element("p", { class: "wrong" }, error)] : [];
  let harm = "";
  for (const each of found) {
    if (each.harm !== harm) made.push(element("h3", {}, each.heading));
    harm = each.harm;
    made.push(finding(store, each));
  }
  return [state, ...made];
}

/**
 * @param {Store} store
 * @param {import("./source.js").Finding} found
 */
function finding(store, found) {
  const { recording } = found;
  const line = (/** @type {string} */ kind, /** @type {string} */ text) =>
    element("p", { class: kind }, ...parts(store, text, recording));
  const links = [];
  if (found.filter) links.push(button(found.filter, () => store.show(found.filter), "its exchanges"));
  if (found.story && store.has.stories)
    links.push(button(`why ${found.story}`, () => store.tell(found.story), "its story"));
  const command = element("code", {}, found.command);
  const copy = button("copy", () => {
    navigator.clipboard.writeText(found.command).then(() => (copy.textContent = "copied"));
  }, "copy the command");
  return element(
    "article", { class: `finding ${found.harm}` },
    line("text", found.text),
    ...found.evidence.map((text) => line("evidence", text)),
    ...(links.length ? [element("p", { class: "links" }, ...links)] : []),
    ...(found.command ? [element("p", { class: "command" }, command, copy)] : []),
  );
}
