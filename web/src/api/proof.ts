/**
 * Asks the user for the password or a code where the server wants a fresh proof. The dialog that asks registers itself
 * here; calls that wait meanwhile share one dialog.
 */
type Asker = () => Promise<void>;

class ProofOfUser {
  private asker: Asker | null = null;
  private asked: Promise<void> | null = null;

  /** Register the dialog. Returns what takes it away. */
  register(asker: Asker): () => void {
    this.asker = asker;
    return () => {
      if (this.asker === asker) this.asker = null;
    };
  }

  /** Resolves when the user has proven who it is; rejects if the dialog is closed. */
  ask(): Promise<void> {
    if (this.asker === null) return Promise.reject(new Error('Confirm first that it is you.'));
    this.asked ??= this.asker().finally(() => {
      this.asked = null;
    });
    return this.asked;
  }
}

export const proofOfUser = new ProofOfUser();
