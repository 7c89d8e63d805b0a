/** Finds a request by its `x-request-id`, whichever tenant it belongs to, among those that one may see. */
import { Button, Group, TextInput } from '@mantine/core';
import { useNavigate } from '@tanstack/react-router';
import { type FormEvent, useState } from 'react';

import { api } from '~/api/client';
import { asProblem } from '~/api/problem';

import { idIn } from './search';

export function FindRequest() {
  const [pasted, setPasted] = useState('');
  const [problem, setProblem] = useState('');
  const [pending, setPending] = useState(false);
  const navigate = useNavigate();
  const find = async (event: FormEvent): Promise<void> => {
    event.preventDefault();
    const name = idIn(pasted);
    if (name === undefined) {
      setProblem('An id is req_ and 32 hexadecimal digits.');
      return;
    }
    setPending(true);
    try {
      const found = (await api.GET('/admin/v1/requests/{name}', { params: { path: { name } } })).data!;
      const params = { tenant: found.tenant, request: found.id };
      await navigate({ to: '/tenants/$tenant/requests/$request', params, search: {} });
    } catch (error) {
      setProblem(asProblem(error).message);
    } finally {
      setPending(false);
    }
  };
  return (
    <form onSubmit={(event) => void find(event)}>
      <Group gap="xs" align="flex-end">
        <TextInput
          size="xs"
          label="Find by x-request-id"
          placeholder="req_…"
          value={pasted}
          error={problem}
          onChange={(event) => {
            setPasted(event.currentTarget.value);
            setProblem('');
          }}
        />
        <Button size="xs" type="submit" variant="default" loading={pending}>
          Find
        </Button>
      </Group>
    </form>
  );
}
