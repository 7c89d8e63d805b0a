/** What the lists of batches and files are narrowed to, as it stands in the URL. */
export const STATES = ['running', 'ended'] as const;
export const PURPOSES = ['batch', 'batch_output', 'user_data'] as const;

export interface BatchFilters {
  project?: string;
  state?: (typeof STATES)[number];
}

export interface FileFilters {
  project?: string;
  purpose?: (typeof PURPOSES)[number];
}
