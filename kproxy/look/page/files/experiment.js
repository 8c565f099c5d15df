/**
 * Breaks what is like the exchange that is open, the next times: a form that makes a fault rule.
 */

import { element } from "./dom.js";
import { isAsSent } from "./terms.js";

/** Errors that the clients of these APIs handle; the others take any. */
const ERRORS = {
  Produce: "NOT_LEADER_OR_FOLLOWER", Fetch: "NOT_LEADER_OR_FOLLOWER",
  JoinGroup: "COORDINATOR_NOT_AVAILABLE", SyncGroup: "REBALANCE_IN_PROGRESS",
  Heartbeat: "REBALANCE_IN_PROGRESS", OffsetCommit: "NOT_COORDINATOR",
  OffsetFetch: "NOT_COORDINATOR", FindCoordinator: "COORDINATOR_NOT_AVAILABLE",
};
const ANY_ERROR = "UNKNOWN_SERVER_ERROR";
const LATENCY = "300ms";
/** @type {{[action: string]: string}} */
const ACTIONS = {
  error: "fail with", latency: "delay by", drop: "lose the answer", disconnect: "disconnect",
};

/**
 * @param {import("./store.js").Store} store
 * @param {import("./source.js").Row} row
 * @returns {Node[]}
 */
export function experiment(store, row) {
  if (!row.api) return [];
  const { api } = row;
  const client_id = row.client_id && isAsSent(row.client_id) ? row.client_id : null;
  const options = Object.entries(ACTIONS).map(([value, text]) =>
    element("option", { value }, text),
  );
  const action = /** @type {HTMLSelectElement} */ (
    element("select", { "aria-label": "What happens" }, ...options)
  );
  const value = input({ value: errorOf(api), "aria-label": "Error or time", spellcheck: "false" });
  const times = input({ type: "number", min: 1, value: 3, "aria-label": "How often" });
  const only = input({ type: "checkbox", checked: client_id !== null });
  action.addEventListener("change", () => {
    value.hidden = !["error", "latency"].includes(action.value);
    value.value = action.value === "error" ? errorOf(api) : LATENCY;
  });
  const whose = client_id === null ? [] : [element("label", {}, only, ` of ${client_id}`)];
  const wrong = element("p", { class: "wrong", role: "alert", hidden: true });
  const submit = async (/** @type {Event} */ event) => {
    event.preventDefault();
    /** @type {{[word: string]: unknown}} */
    const rule = { api, times: Number(times.value) };
    if (client_id !== null && only.checked) rule.client_id = client_id;
    rule[action.value] = value.hidden || value.value;
    wrong.hidden = true;
    wrong.textContent = await store.addFault(rule);
    wrong.hidden = wrong.textContent === "";
  };
  const form = element(
    "form", { class: "experiment", onsubmit: submit, "aria-label": "Add a fault rule" },
    `${api}: `, action, value, ...whose, ", the next ", times, " times ",
    element("button", { type: "submit" }, "Add"), wrong,
  );
  form.addEventListener("input", () => (wrong.hidden = true));
  return [form];
}

/** @param {string} api */
const errorOf = (api) => ERRORS[/** @type {keyof ERRORS} */ (api)] ?? ANY_ERROR;

/** @param {{[name: string]: string | number | boolean}} properties */
const input = (properties) =>
  /** @type {HTMLInputElement} */ (element("input", properties));
