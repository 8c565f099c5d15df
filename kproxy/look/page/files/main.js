/**
 * The page: a store, and a view of each part of it.
 */

import { byId } from "./dom.js";
import { showExchange } from "./exchange.js";
import { showFilter } from "./filter.js";
import { listenToKeys } from "./keyboard.js";
import { showList } from "./list.js";
import { showNotices } from "./notices.js";
import { showOverview } from "./overview.js";
import { Store } from "./store.js";
import { showStory } from "./story.js";
import { showViews } from "./views.js";

const store = new Store();
const filter = showFilter(store, byId("filter"));
const list = showList(store, byId("list"));
showOverview(store, byId("overview"));
showExchange(store, byId("exchange"));
showStory(store, byId("story"));
showViews(store, byId("view"), byId("tabs"));
showNotices(store, byId("count"), byId("notices"));
listenToKeys(store, filter, list, byId("help"));
store.start();
