/**
 * Asks for what a view beside the list shows.
 */

import * as source from "./source.js";

export const VIEWS = ["findings", "lanes", "statistics", "records", "faults"];

/**
 * @typedef {{view: "statistics", data: source.Statistics} | {view: "lanes", data: source.Lanes}
 *   | {view: "records", data: source.Records} | {view: "faults", data: source.Faults}
 *   | {view: "findings", data: source.Findings}} Shown
 */

/**
 * @param {import("./address.js").Chosen} chosen
 * @returns {Promise<{done: boolean, shown: Shown | null}>}
 */
export async function askBeside({ view, filter, topic }) {
  switch (view) {
    case "findings": {
      const data = await source.findings();
      return { done: data.done, shown: { view, data } };
    }
    case "statistics": {
      const data = await source.statistics(filter);
      return { done: data.done, shown: data.done ? { view, data } : null };
    }
    case "lanes": {
      const data = await source.lanes(filter);
      return { done: data.done, shown: { view, data } };
    }
    case "records": {
      const data = await source.records(filter, topic);
      return { done: data.done, shown: data.done ? { view, data } : null };
    }
    default:
      return { done: false, shown: { view: "faults", data: await source.faults() } };
  }
}
