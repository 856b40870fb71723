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

// A share of what a disk may take in its life: small ones count, too.
export function smallPercent(value) {
  if (value == null) return UNKNOWN;
  const hundredths = 100 * value;
  if (hundredths < 0.01) return "under 0.01 %";
  return `${hundredths < 10 ? Number(hundredths.toPrecision(2)) : count(hundredths)} %`;
}

export function percent(value) {
  return value == null ? UNKNOWN : `${Math.round(100 * value)} %`;
}

// By thousands with three digits, as disks and links are sold, and as the terminal says it.
export function bytes(value) {
  if (value == null) return UNKNOWN;
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let unit = 0;
  while (Math.abs(value) >= 999.5 && unit + 1 < units.length) {
    value /= 1000;
    unit += 1;
  }
  return `${plain.format(Number(value.toPrecision(3)))} ${units[unit]}`;
}

export function byteRate(value) {
  return value == null ? UNKNOWN : `${bytes(value)}/s`;
}

export function duration(seconds) {
  if (seconds == null || !isFinite(seconds)) return UNKNOWN;
  if (seconds < 10) return `${Number(seconds.toPrecision(3))} s`;
  const whole = Math.round(seconds);
  const [days, hours, minutes] = [Math.floor(whole / 86400), Math.floor(whole / 3600) % 24, Math.floor(whole / 60) % 60];
  if (days >= 730) return `${(days / 365.25).toPrecision(2)} years`;
  if (days) return `${days} d ${hours} h`;
  if (hours) return `${hours} h ${minutes} min`;
  return minutes ? `${minutes} min ${whole % 60} s` : `${whole} s`;
}
