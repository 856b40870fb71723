// Numbers and times as people read them.

const plain = new Intl.NumberFormat("en");

export const UNKNOWN = "–";

export function count(value) {
  return value == null ? UNKNOWN : plain.format(Math.round(value));
}

export function figure(value, digits = 4) {
  if (value == null) return UNKNOWN;
  return Math.abs(value) >= 1e-3 || value === 0 ? String(Number(value.toPrecision(digits))) : value.toExponential(2);
}

export function percent(value) {
  return value == null ? UNKNOWN : `${Math.round(100 * value)} %`;
}

export function bytes(value) {
  if (value == null) return UNKNOWN;
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (value >= 1024 && unit + 1 < units.length) {
    value /= 1024;
    unit += 1;
  }
  return `${unit ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

export function byteRate(value) {
  return value == null ? UNKNOWN : `${bytes(value)}/s`;
}

export function duration(seconds) {
  if (seconds == null || !isFinite(seconds)) return UNKNOWN;
  if (seconds < 10) return `${seconds.toFixed(seconds < 1 ? 2 : 1)} s`;
  const whole = Math.round(seconds);
  const [days, hours, minutes] = [Math.floor(whole / 86400), Math.floor(whole / 3600) % 24, Math.floor(whole / 60) % 60];
  if (days) return `${days} d ${hours} h`;
  if (hours) return `${hours} h ${minutes} min`;
  return minutes ? `${minutes} min ${whole % 60} s` : `${whole} s`;
}
