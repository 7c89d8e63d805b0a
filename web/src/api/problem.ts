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

  /** Whether the same call may succeed later without any change. */
  get transient(): boolean {
    return this.status === 0 || this.status === 429 || this.status >= 500;
  }

  /** The problem that an answer tells of. */
  static async of(response: Response): Promise<Problem> {
    const requestId = response.headers.get('x-request-id') ?? '';
    const body: unknown = await response.json().catch(() => null);
    const error = (body as { error?: Record<string, unknown> } | null)?.error ?? {};
    const text = (value: unknown): string => (typeof value === 'string' ? value : '');
    // Where it stands is shown by the form: at the field.
    const message = text(error.message).replace(/\$\.(?=[\w[])/g, '') || `The server answered ${response.status}.`;
    return new Problem(message, response.status, text(error.code), text(error.param), requestId);
  }
}

/** Any failure as a Problem. */
export function asProblem(error: unknown): Problem {
  if (error instanceof Problem) return error;
  if (error instanceof TypeError) return new Problem('The gateway does not answer.', 0, 'unreachable', '', '');
  return new Problem(error instanceof Error ? error.message : String(error), 0, '', '', '');
}
