// Follows the chosen runs, each by one stream of events, and shows what they send.

import { Charts } from "./charts.js";
import {
  keepLog, showBlocks, showLinks, showLog, showNow, showSettings, showStore, showWear, showWorkers,
} from "./panels.js";

const LIST_SECONDS = 10; // between two looks for new runs
const MOST_ROWS = 12000; // then the run is asked for anew, thinned

const charts = new Charts(document.getElementById("charts"));
const connection = document.getElementById("connection");
const runs = []; // all of them, in the server's order
let listedWords = "";
let stream = null;
let chosen = []; // the first one fills the panels; all are in the charts

function makeRun(listed, index) {
  return {
    ...listed, index, rows: null, state: { live: false, ended: false, why: "it has not been asked yet" }, settings: {}, blockNames: [], log: [],
    binding: "", rolledBack: 0, reading: null, wear: null, pace: {}, lossIsFinite: true,
  };
}

function take(run, record) {
  if (record.anew) {
    Object.assign(run, { rows: record.rows, log: [] });
  } else {
    for (const [name, values] of Object.entries(record.rows)) run.rows[name].push(...values);
  }
  run.blockNames = record.block_names ?? run.blockNames;
  run.settings = record.settings ?? run.settings;
  run.state = record.state;
  run.binding = record.binding;
  run.reading = record.reading;
  run.wear = record.wear;
  run.pace = record.pace;
  run.lossIsFinite = record.loss_is_finite;
  run.rolledBack = record.rolled_back;
  run.log = keepLog(run.log, record.log);
  if (run.rows.step.length > MOST_ROWS) follow();
}

// One stream for all chosen runs: a browser opens few connections to a server.
function follow() {
  stream?.close();
  stream = null;
  if (!chosen.length) return;
  stream = new EventSource(`api/stream?runs=${chosen.map((run) => run.id).join(",")}`);
  stream.onopen = () => { connection.textContent = ""; };
  stream.onmessage = (event) => {
    const record = JSON.parse(event.data);
    take(runs[record.run], record);
    show(record);
  };
  stream.onerror = () => {
    connection.textContent = stream.readyState === EventSource.CLOSED
      ? "luwu watch was started again; open the URL that it prints."
      : "luwu watch does not answer; it is asked again.";
  };
}

function show(record) {
  const here = chosen.filter((run) => run.rows);
  if (!here.length) return;
  const main = here[0];
  document.title = `${main.name} – LuWu`;
  document.getElementById("title").textContent = main.name;
  showNow(main);
  showBlocks(main);
  showWorkers(main);
  showLinks(main);
  showStore(main);
  showWear(main);
  if (!record || record.anew || record.log.length) showLog(main);
  if (!record || record.settings) showSettings(here);
  if (!record || record.anew || record.rows.step.length) charts.draw(here);
}

function choose(run, wanted) {
  chosen = wanted ? [...chosen, run] : chosen.filter((each) => each !== run);
  follow();
  show(null);
}

function listRuns() {
  document.getElementById("runs").hidden = runs.length < 2;
  document.getElementById("run-list").replaceChildren(...runs.map((run) => {
    const item = document.createElement("li");
    const label = item.appendChild(document.createElement("label"));
    const box = label.appendChild(document.createElement("input"));
    box.type = "checkbox";
    box.checked = chosen.includes(run);
    box.addEventListener("change", () => choose(run, box.checked));
    const swatch = label.appendChild(document.createElement("span"));
    swatch.className = `swatch series-${run.index % 6}`;
    label.append(run.live ? `${run.name} (under way)` : run.name);
    return item;
  }));
}

async function findRuns() {
  const answer = await fetch("api/runs");
  if (!answer.ok) return;
  for (const listed of await answer.json()) {
    if (runs[listed.id]) Object.assign(runs[listed.id], { live: listed.live });
    else runs.push(makeRun(listed, runs.length));
  }
  const words = JSON.stringify(runs.map((run) => [run.name, run.live]));
  if (words !== listedWords) listRuns();
  listedWords = words;
}

async function start() {
  await findRuns();
  choose(runs.find((run) => run.live) ?? runs[runs.length - 1], true);
  listRuns();
  document.getElementById("level").addEventListener("change", () => showLog(chosen[0]));
  setInterval(() => findRuns().catch(() => {}), 1000 * LIST_SECONDS);
}

start();
