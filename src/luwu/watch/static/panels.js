// What the page says about the run beside its curves. Text of runs is set as text, never as HTML.

import { UNKNOWN, byteRate, bytes, count, duration, figure, percent, smallPercent } from "./words.js";

const VIEWS = [
  "on disk", "being read", "in memory", "handed out", "gradient in", "being updated", "being written", "updated",
];
const TRANSPORTS = { shm: "shared memory", tcp: "TCP", udp: "UDP" };
const LEVELS = ["debug", "info", "warning", "error"];
const MOST_LOG_LINES = 1000;

function byId(id) {
  return document.getElementById(id);
}

function element(tag, text, className) {
  const made = document.createElement(tag);
  if (text != null) made.textContent = text;
  if (className) made.className = className;
  return made;
}

// Fills a <dl> with names and values; what is there already is changed in its place.
function fill(list, values) {
  const rows = Object.entries(values).filter(([, value]) => value != null);
  while (list.children.length > rows.length) list.lastChild.remove();
  rows.forEach(([name, value], index) => {
    const row = list.children[index] ?? list.appendChild(element("div"));
    if (!row.children.length) row.append(element("dt"), element("dd"));
    if (row.children[0].textContent !== name) row.children[0].textContent = name;
    if (row.children[1].textContent !== value) row.children[1].textContent = value;
    row.dataset.name = name;
  });
}

// Roles of tables are written out: on a phone their style is no table's, and they would lose them.
const ROLES = { table: "table", "thead, tbody": "rowgroup", "thead tr": "row", "thead th": "columnheader" };
for (const [parts, role] of Object.entries(ROLES)) {
  for (const part of document.querySelectorAll(parts)) part.setAttribute("role", role);
}

function fillRows(body, rows) {
  const heads = [...body.parentElement.tHead.querySelectorAll("th")].map((head) => head.textContent);
  body.replaceChildren(...rows.map(({ cells, className }) => {
    const row = element("tr", null, className);
    row.setAttribute("role", "row");
    row.append(...cells.map((cell, index) => {
      const made = element(index ? "td" : "th", cell);
      made.setAttribute("role", index ? "cell" : "rowheader");
      made.dataset.head = heads[index] ?? "";
      if (!index) made.scope = "row";
      return made;
    }));
    return row;
  }));
}

function fillHead(head, names) {
  const row = element("tr");
  row.setAttribute("role", "row");
  row.append(...names.map((name) => {
    const cell = element("th", name);
    cell.setAttribute("role", "columnheader");
    cell.scope = "col";
    return cell;
  }));
  head.replaceChildren(row);
}

function last(values) {
  for (let index = values.length - 1; index >= 0; index -= 1) if (values[index] != null) return values[index];
  return null;
}

export function showNow(run) {
  const { pace, rows, state, settings } = run;
  const steps = settings["run.steps"];
  const step = state.live ? state.step : last(rows.step);
  const left = state.live && steps != null && pace.seconds != null ? Math.max(0, steps - step) * pace.seconds : null;
  const told = run.binding ? `${run.binding[0].toUpperCase()}${run.binding.slice(1)}.` : "The run is under way.";
  const ended = state.ended ? `The run ${state.why}.` : `The run cannot be followed: ${state.why}.`;
  byId("standing").textContent = state.live ? told : ended;
  showNotices(state, run.reading);
  const rolledBack = state.live ? state.rolled_back : run.rolledBack;
  fill(byId("numbers"), {
    "step": steps == null ? count(step) : `${count(step)} of ${count(steps)}`,
    "loss": run.lossIsFinite ? figure(last(rows.loss)) : "not finite",
    "validation loss": figure(last(rows.validation_loss)),
    "gradient norm": figure(last(rows.grad_norm)),
    "learning rate": figure(last(rows.lr)),
    "tokens a second": count(pace.tokens_per_second),
    "seconds a step": duration(pace.seconds),
    "communication hidden": percent(pace.hidden),
    "time left": left == null ? null : duration(left),
    "last on the disk": state.live ? `step ${count(state.durable_step)}` : null,
    "since it came there": state.live ? duration(state.since_commit_seconds) : null,
    "rolled back": count(rolledBack),
  });
}

function showNotices(state, reading) {
  const notices = [];
  if (reading != null) notices.push(["", `The steps until now are being read: ${percent(reading)}.`]);
  if (state.failure) notices.push(["bad", `The run has failed: ${state.failure}`]);
  for (const text of state.alerts ?? []) notices.push(["", text]);
  if (state.pause) notices.push(["", state.pause]);
  if (state.missing?.length) notices.push(["", `Waits for ${state.missing.map((rank) => `worker ${rank}`).join(", ")}.`]);
  for (const worker of state.present ?? []) {
    if (worker.late) notices.push(["", `The others have waited for worker ${worker.rank} for ${duration(worker.behind_seconds)}.`]);
  }
  byId("notices").replaceChildren(...notices.map(([kind, text]) => element("li", text, kind)));
}

export function showBlocks(run) {
  const views = run.state.live ? run.state.blocks : [];
  byId("blocks-section").hidden = !views.length;
  if (!views.length) return;
  const counts = VIEWS.map((_, view) => views.filter((each) => each === view).length);
  const legend = byId("block-legend");
  if (!legend.children.length) {
    legend.append(...VIEWS.map((_, view) => {
      const item = element("li");
      item.append(element("span", null, `swatch view-${view}`), element("span"));
      return item;
    }));
  }
  counts.forEach((number, view) => { legend.children[view].lastChild.textContent = `${VIEWS[view]}: ${number}`; });
  const list = byId("blocks");
  while (list.children.length > views.length) list.lastChild.remove();
  views.forEach((view, index) => {
    const item = list.children[index] ?? list.appendChild(element("li"));
    const text = `${run.blockNames[index] ?? `block ${index}`}: ${VIEWS[view]}`;
    if (item.textContent === text) return;
    item.textContent = item.title = text;
    item.className = `view-${view}`;
  });
}

export function showWorkers(run) {
  const present = run.state.live ? run.state.present : [];
  byId("workers-section").hidden = !present.length;
  fillRows(byId("workers"), present.map((worker) => ({
    className: worker.late ? "late" : "",
    cells: [
      worker.peer ? `${worker.rank} (${worker.peer})` : `${worker.rank}`,
      worker.activity, count(worker.pushed), worker.share == null ? "an equal share" : count(worker.share),
      bytes(worker.memory_bytes), worker.behind_seconds ? duration(worker.behind_seconds) : "no",
    ],
  })));
}

// Over UDP, a count of packets with what goes on now; other transports have no packets of ours.
function packets(link, all, now) {
  if (link.transport !== "udp") return UNKNOWN;
  return now ? `${count(all)} in all, ${now} now` : `${count(all)} in all`;
}

export function showLinks(run) {
  const links = run.state.live ? run.state.links : [];
  byId("links-section").hidden = !links.length;
  fillRows(byId("links"), links.map((link) => ({
    cells: [
      link.name, TRANSPORTS[link.transport] ?? link.transport,
      byteRate(link.received_bytes_per_second), byteRate(link.sent_bytes_per_second),
      packets(link, link.packets_again, link.again_share == null ? "" : `${figure(100 * link.again_share, 2)} %`),
      packets(link, link.packets_dropped, link.dropped_per_second ? `${figure(link.dropped_per_second, 2)} a second` : ""),
    ],
  })));
}

export function showStore(run) {
  const { state } = run;
  byId("store-section").hidden = !state.live;
  if (!state.live) return;
  fill(byId("server"), {
    "pulled by workers": byteRate(state.traffic["pulled"]),
    "pushed by workers": byteRate(state.traffic["pushed"]),
    "store read": byteRate(state.traffic["store read"]),
    "store written": byteRate(state.traffic["store written"]),
    "packets sent again": state.sent_again == null ? null : `${figure(100 * state.sent_again, 2)} %`,
    "server's memory, as planned": bytes(state.server_memory_bytes),
  });
  byId("machine-table").hidden = !state.machines.length;
  fillRows(byId("machines"), state.machines.map((each) => ({
    cells: [each.host, each.peer, each.ranks.join(", ") || "none", each.waits ? `${each.waits} workers` : "none"],
  })));
  byId("switch-table").hidden = !state.switches.length;
  fillRows(byId("switches"), state.switches.map((each) => ({
    cells: [each.name, each.address, each.parent ? `switch ${each.parent}` : "none named"],
  })));
  byId("disk-table").hidden = !state.disks.length;
  fillRows(byId("disks"), state.disks.map((disk) => ({
    cells: [disk.name, byteRate(disk.read_bytes_per_second), byteRate(disk.written_bytes_per_second), count(disk.queue)],
  })));
}

export function showWear(run) {
  const { wear } = run;
  byId("wear-section").hidden = !wear;
  if (!wear) return;
  const rated = wear.endurance_bytes != null;
  byId("wear-note").textContent = rated
    ? `A disk wears by what is written to it. Its data sheet rates it for ${bytes(wear.endurance_bytes)}.`
    : "A disk wears by what is written to it. To see the share of what it is rated for, "
      + "start luwu train with --endurance from its data sheet, such as 600TBW.";
  const heads = ["folder of the store", "disk", `written ${wear.whose}`, "written a step"];
  if (rated) heads.push("used of its rated endurance", "a new disk lasts for");
  fillHead(byId("wear-head"), heads);
  fillRows(byId("wear"), wear.stores.map((store) => ({
    cells: [
      store.folder || "all of it", store.disk || UNKNOWN, bytes(store.written_bytes), bytes(store.step_bytes),
      ...(rated ? [smallPercent(store.endurance_share),
        store.life_days == null ? UNKNOWN : `${duration(86400 * store.life_days)} of such training`] : []),
    ],
  })));
}

// One run: all of its settings. Several: those that differ.
export function showSettings(runs) {
  const names = [...new Set(runs.flatMap((run) => Object.keys(run.settings)))].sort();
  const shown = runs.length > 1
    ? names.filter((name) => new Set(runs.map((run) => run.settings[name])).size > 1)
    : names;
  byId("settings-section").hidden = !names.length;
  byId("settings-title").textContent = runs.length > 1 ? "Settings that differ" : "Settings";
  byId("settings-summary").textContent = runs.length > 1
    ? `${shown.length} of ${names.length} settings differ` : `All ${names.length} settings of the run`;
  byId("settings-fold").open ||= runs.length > 1;
  fillHead(byId("settings-head"), ["setting", ...runs.map((run) => run.name)]);
  fillRows(byId("settings"), shown.map((name) => ({
    cells: [name, ...runs.map((run) => String(run.settings[name] ?? UNKNOWN))],
  })));
}

export function showLog(run) {
  const least = LEVELS.indexOf(byId("level").value);
  const lines = run.log.filter((line) => LEVELS.indexOf(line.level) >= least);
  const list = byId("log");
  const atEnd = list.scrollTop + list.clientHeight >= list.scrollHeight - 4;
  list.replaceChildren(...(lines.length
    ? lines.map((line) => element("div", `${line.source}: ${line.text}`, line.level))
    : [element("div", "Nothing is logged.", "debug")]));
  if (atEnd) list.scrollTop = list.scrollHeight;
}

export function keepLog(log, lines) {
  return [...log, ...lines].slice(-MOST_LOG_LINES);
}
