// How numbers and times are written, once for all live parts. Pure.

export type Format = "percent" | "number" | "age" | "time" | "duration" | "text";

const NUMBER = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
const PERCENT = new Intl.NumberFormat("en", { style: "percent", minimumFractionDigits: 1, maximumFractionDigits: 1 });

/** "3 min ago" for something at `time`, both in Unix milliseconds. */
export function ageOf(time: number, now: number): string {
  const seconds = Math.max(0, Math.floor((now - time) / 1000));
  if (seconds < 5) return "just now";
  if (seconds < 60) return `${seconds} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 48 * 3600) return `${Math.floor(seconds / 3600)} h ago`;
  return `${Math.floor(seconds / 86400)} days ago`;
}

/** An ISO time in the reader's zone, to the second; what is no time comes back as it is. */
export function exactTime(iso: string): string {
  const time = new Date(iso);
  return Number.isNaN(time.getTime()) ? iso : time.toLocaleString("en-GB", { timeZoneName: "short" });
}

export function clockTime(time: number): string {
  return new Date(time).toLocaleTimeString("en-GB");
}

/** A value of the API as text: nothing for null, numbers as `format` says. */
export function formatted(value: unknown, format: Format, now: number = Date.now()): string {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return formattedNumber(value, format);
  if (typeof value !== "string") return typeof value === "boolean" ? (value ? "yes" : "no") : JSON.stringify(value);
  if (format === "age") return Number.isNaN(Date.parse(value)) ? value : ageOf(Date.parse(value), now);
  if (format === "time") return exactTime(value);
  return value;
}

function formattedNumber(value: number, format: Format): string {
  if (format === "percent") return PERCENT.format(value);
  if (format === "duration") return duration(value);
  if (format === "text") return String(value);
  return Number.isInteger(value) ? value.toLocaleString("en") : NUMBER.format(value);
}

function duration(seconds: number): string {
  const whole = Math.round(seconds);
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor((whole % 3600) / 60)];
  if (hours > 0) return `${hours} h ${minutes} min`;
  return minutes > 0 ? `${minutes} min ${whole % 60} s` : `${whole} s`;
}
