/**
 * The fault rules of the proxy that runs, and how often they hit.
 */

import { element } from "./dom.js";
import { button, quoted } from "./exchange.js";
import { enableFault, removeFault } from "./source.js";

/**
 * @param {import("./store.js").Store} store
 * @returns {Node[]}
 */
export function faults(store) {
  const found = store.made?.faults ?? [];
  if (!found.length)
    return [element("p", {}, "no rules: open an exchange to break what is like it")];
  const titles = ["", "hit", "matched", "rule"];
  const head = titles.map((text) => element("th", {}, text));
  return [
    element(
      "table",
      { class: "statistics faults" },
      element("thead", {}, element("tr", {}, ...head)),
      element("tbody", {}, ...found.map((fault) => line(store, fault))),
    ),
  ];
}

/**
 * @param {import("./store.js").Store} store
 * @param {import("./source.js").Fault} fault
 */
function line(store, fault) {
  const { name, enabled, rule, matched, fired } = fault;
  const words = Object.entries(rule).map(([key, value]) => `${key}=${said(value)}`);
  const text = words.join(" ");
  const about = [...new Set([name, text, ...fault.warnings])].join(" · ");
  const show = () => store.show(`fault:${quoted(name)}`);
  const hits = button(fired.toLocaleString("en"), show, "show");
  const turn = () => store.changeFault(() => enableFault(fault, !enabled));
  const remove = () => store.changeFault(() => removeFault(fault));
  const acts = element("span", {}, button(enabled ? "off" : "on", turn), button("remove", remove));
  const cells = [acts, hits, matched.toLocaleString("en"), about];
  return element(
    "tr",
    { class: enabled ? "" : "off" },
    ...cells.map((each) => element("td", {}, each)),
  );
}

/** @param {unknown} value */
const said = (value) => (typeof value === "object" ? JSON.stringify(value) : String(value));
