/** What went wrong with a call, in the server's own words. */
export class Problem extends Error {
  override name = 'Problem';

  constructor(
    message: string,
    /** The HTTP status; 0 where no answer came. */
    readonly status: number,
    /** The machine-readable cause, such as `name_taken`; empty where there is none. */
    readonly code: string,
    /** The field that is wrong, such as `email`; empty where no field is. */
    readonly field: string,
    /** The id to find the request by in the server's logs. */
    readonly requestId: string,
  ) {
    super(message);
  }

  /** A problem with a field that was found before anything was sent. */
  static at(field: string, message: string): Problem {
    return new Problem(message, 0, 'invalid_value', field, '');
  }

  /** Whether the same call may succeed later without any change. */
  get transient(): boolean {
    return (this.status === 0 && this.field === '') || this.status === 429 || this.status >= 500;
  }

  /** The message as it stands at the field, which it need not name. */
  get words(): string {
    const named = this.field !== '' && this.message.startsWith(`${this.field}: `);
    const words = named ? this.message.slice(this.field.length + 2) : this.message;
    return /^[a-z]+[ ,]/.test(words) ? `${words[0]!.toUpperCase()}${words.slice(1)}` : words;
  }

  /** The problem that an answer tells of. */
  static async of(response: Response): Promise<Problem> {
    const requestId = response.headers.get('x-request-id') ?? '';
    const body: unknown = await response.json().catch(() => null);
    const error = (body as { error?: Record<string, unknown> } | null)?.error ?? {};
    const text = (value: unknown): string => (typeof value === 'string' ? value : '');
    // Where it stands is shown by the form: at the field.
    const plain = (value: unknown): string => text(value).replace(/\$\.(?=[\w[])/g, '');
    const message = plain(error.message) || `The server answered ${response.status}.`;
    return new Problem(message, response.status, text(error.code), plain(error.param), requestId);
  }
}

/** Any failure as a Problem. */
export function asProblem(error: unknown): Problem {
  if (error instanceof Problem) return error;
  if (error instanceof TypeError) return new Problem('The gateway does not answer.', 0, 'unreachable', '', '');
  return new Problem(error instanceof Error ? error.message : String(error), 0, '', '', '');
}
