/**
 * The fault rules of the proxy that runs, and how often they hit.
 */

import { button, element, table } from "./dom.js";
import { isAsSent, quoted } from "./terms.js";

/**
 * @param {import("./store.js").Store} store
 * @param {import("./source.js").Faults} data
 * @returns {Node[]}
 */
export function faults(store, { faults: found }) {
  if (!found.length) return [element("p", {}, noRules(store))];
  const lines = found.map((fault) => line(store, fault));
  return [table("statistics faults", ["", "hit", "matched", "rule"], lines)];
}

/** @param {import("./store.js").Store} store */
const noRules = (store) =>
  store.recorded
    ? "no rules: open an exchange to break what is like it"
    : "no rules: kproxy fault add makes one. Nothing is recorded here, so there is no list.";

/**
 * @param {import("./store.js").Store} store
 * @param {import("./source.js").Fault} fault
 */
function line(store, fault) {
  const { name, enabled, rule, matched, fired } = fault;
  const words = Object.entries(rule).map(([key, value]) => `${key}=${valueText(value)}`);
  const text = words.join(" ");
  const about = [...new Set([name, text, ...fault.warnings])].join(" · ");
  const show = () => store.show(`fault:${quoted(name)}`);
  const count = fired.toLocaleString("en");
  const hits = store.recorded && isAsSent(name) ? button(count, show, "show") : count;
  const turn = () => store.enableFault(fault, !enabled);
  const remove = () => store.removeFault(fault);
  const acts = element("span", {}, button(enabled ? "off" : "on", turn), button("remove", remove));
  const cells = [acts, hits, matched.toLocaleString("en"), about];
  return element(
    "tr",
    { class: enabled ? "" : "off" },
    ...cells.map((each) => element("td", {}, each)),
  );
}

/** @param {unknown} value */
const valueText = (value) => (typeof value === "object" ? JSON.stringify(value) : String(value));
