/**
 * The colours of APIs over time, as the chart gives them.
 */

import assert from "node:assert/strict";

import { giveColours } from "./overview.js";

const first = [
  "ApiVersions", "Metadata", "FindCoordinator", "JoinGroup", "SyncGroup", "Heartbeat", "ListOffsets",
];
const colours = new Map();
const totals = new Map(first.map((api) => [api, 2]));
giveColours(colours, totals, true);
assert.deepEqual([...colours.keys()], first);

totals.set("Produce", 4);
giveColours(colours, totals, true);
assert.deepEqual([...colours.keys()], first, "twice as many as the rarest is not far more");

const before = first.map((api) => /** @type {const} */ ([api, api === "Heartbeat" ? 1 : 2]));
const busiest = new Map([["Produce", 90], ["Fetch", 80], ...before]);
giveColours(colours, busiest, false);
assert.deepEqual([...colours.keys()], first, "under a filter they are kept");

const heartbeats = colours.get("Heartbeat");
giveColours(colours, busiest, true);
assert.equal(colours.get("Produce"), heartbeats, "the rarest gave its own");
assert.ok(colours.has("Fetch") && !colours.has("Heartbeat"));
assert.deepEqual([...colours.values()].sort(), [0, 1, 2, 3, 4, 5, 6], "no two have the same");
