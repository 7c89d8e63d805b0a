/** The form of a question, what it would cost, and its answer. */
import { Button, Group, SimpleGrid, Stack, Textarea, TextInput } from '@mantine/core';
import { useMutation } from '@tanstack/react-query';
import { type FormEvent, useEffect, useRef, useState } from 'react';

import { api, type Schema } from '~/api/client';
import { fieldError, FormProblem } from '~/components/forms';

import { Answer } from './Answer';
import { type Body, bodyOf, type Question } from './body';
import { Choice } from './Choice';
import { EstimateView } from './EstimateView';
import { Programs } from './Programs';
import { ask, playgroundPath, type Told } from './stream';

interface PlaygroundProps {
  tenant: string;
  project: string;
  offered: Schema<'PlaygroundObject'>;
}

export function Playground({ tenant, project, offered }: PlaygroundProps) {
  const [question, setQuestion] = useState<Question>({
    model: offered.models[0]!.id,
    system: '',
    user: '',
    lane: 'standard',
    maxTokens: '256',
    temperature: '',
  });
  const set = (part: Partial<Question>): void => setQuestion((before) => ({ ...before, ...part }));
  const body = bodyOf(question);
  const estimate = useMutation({
    mutationFn: async (asked: Body) =>
      (
        await api.POST('/admin/v1/tenants/{tenant}/projects/{project}/playground/estimate', {
          params: { path: { tenant, project }, header: {} as never },
          body: asked as never,
        })
      ).data!,
  });
  const answer = useAnswer(playgroundPath(tenant, project));
  const error = answer.error ?? estimate.error;
  const systemError = question.system === '' ? undefined : fieldError(error, 'messages[0]');
  const send = (event: FormEvent): void => {
    event.preventDefault();
    estimate.reset();
    answer.send(body);
  };
  return (
    <Stack>
      <form onSubmit={send} aria-label="Question">
        <Stack>
          <SimpleGrid cols={{ base: 1, xs: 2, md: 4 }}>
            <Choice
              label="Model"
              value={question.model}
              choices={offered.models.map((model) => [model.id, model.id])}
              error={fieldError(error, 'model')}
              set={(model) => set({ model })}
            />
            <Choice
              label="Lane"
              value={question.lane}
              choices={offered.lanes.map((lane) => [lane, lane])}
              error={fieldError(error, 'service_tier')}
              set={(lane) => set({ lane })}
            />
            <TextInput
              label="Most output tokens"
              inputMode="numeric"
              pattern="[0-9]+"
              title="A whole number of tokens"
              value={question.maxTokens}
              error={fieldError(error, 'max_completion_tokens')}
              onChange={(event) => set({ maxTokens: event.currentTarget.value })}
            />
            <TextInput
              label="Temperature"
              inputMode="decimal"
              pattern="[0-9]+(\.[0-9]+)?"
              title="A number, such as 0.7"
              placeholder="the model's"
              value={question.temperature}
              error={fieldError(error, 'temperature')}
              onChange={(event) => set({ temperature: event.currentTarget.value })}
            />
          </SimpleGrid>
          <Textarea
            label="System message"
            autosize
            minRows={2}
            maxRows={12}
            autoComplete="off"
            value={question.system}
            error={systemError}
            onChange={(event) => set({ system: event.currentTarget.value })}
          />
          <Textarea
            label="User message"
            required
            autosize
            minRows={3}
            maxRows={20}
            autoComplete="off"
            value={question.user}
            error={systemError === undefined ? fieldError(error, 'messages') : undefined}
            onChange={(event) => set({ user: event.currentTarget.value })}
          />
          <FormProblem error={error} />
          <Group>
            <Button type="submit" disabled={answer.running || question.user === ''}>
              Send
            </Button>
            <Button
              variant="default"
              disabled={question.user === ''}
              loading={estimate.isPending}
              onClick={() => {
                answer.clearError();
                estimate.mutate(body);
              }}
            >
              Estimate
            </Button>
            {answer.running && (
              <Button variant="outline" color="red.9" onClick={answer.stop}>
                Stop
              </Button>
            )}
          </Group>
        </Stack>
      </form>
      {estimate.data !== undefined && <EstimateView estimate={estimate.data} lane={question.lane} />}
      {answer.requestId !== null && <Answer tenant={tenant} answer={answer} requestId={answer.requestId} />}
      <Programs body={body} />
    </Stack>
  );
}

/** The answer to the last question, as far as it has come. */
export interface AnswerState {
  told: Told;
  running: boolean;
  stopped: boolean;
  error: unknown;
}

const NOTHING: AnswerState = { told: { text: '' }, running: false, stopped: false, error: null };

/** Asks one question at a time; leaving the page stops it. */
function useAnswer(path: string) {
  const [state, setState] = useState<AnswerState>(NOTHING);
  const [requestId, setRequestId] = useState<string | null>(null);
  const abort = useRef<AbortController | null>(null);
  useEffect(() => () => abort.current?.abort(), []);
  const send = (body: Body): void => {
    const own = new AbortController();
    abort.current = own;
    setState({ ...NOTHING, running: true });
    setRequestId(null);
    const change = (part: Partial<AnswerState>): void => setState((before) => ({ ...before, ...part }));
    ask(path, body, own.signal, setRequestId, (told) => change({ told }))
      .catch((error: unknown) => change(own.signal.aborted ? { stopped: true } : { error }))
      .finally(() => change({ running: false }));
  };
  return {
    ...state,
    requestId,
    send,
    stop: () => abort.current?.abort(),
    clearError: () => setState((before) => ({ ...before, error: null })),
  };
}
