/** The inputs about a key, for creating and for changing one, with the server's words at each. */
import { MultiSelect, NativeSelect, TagsInput, TextInput } from '@mantine/core';

import { useMe } from '~/access/rights';
import { fieldError } from '~/components/forms';

import { ROLE_CHOICES, scopesToGive } from '../roles';
import { type Key, type KeyFields, LANES } from './fields';

export const KEY_FIELDS = ['name', 'project', 'role', 'scopes', 'networks', 'models', 'lanes', 'expires_at'] as const;

interface KeyFieldInputsProps {
  kind: Key['kind'];
  fields: KeyFields;
  set: (fields: KeyFields) => void;
  error: unknown;
  /** The id of the tenant whose key it is; none for an operator's. */
  tenantId?: string;
}

export function KeyFieldInputs({ kind, fields, set, error, tenantId }: KeyFieldInputsProps) {
  const me = useMe();
  const ofProject = kind === 'project';
  const change = <Name extends keyof KeyFields>(name: Name) => {
    return (value: KeyFields[Name]): void => set({ ...fields, [name]: value });
  };
  return (
    <>
      {kind !== 'operator' && (
        <TextInput
          label="Name"
          description="What it is for; people see it in usage and in the audit log."
          data-autofocus
          value={fields.name}
          error={fieldError(error, 'name')}
          onChange={(event) => change('name')(event.currentTarget.value)}
        />
      )}
      {!ofProject && (
        <NativeSelect
          label="Role"
          data={ROLE_CHOICES}
          value={fields.role}
          error={fieldError(error, 'role')}
          onChange={(event) => change('role')(event.currentTarget.value as KeyFields['role'])}
        />
      )}
      <MultiSelect
        label="Scopes"
        description="What it may do; without any, all that its role or project allows."
        data={scopesToGive(me, tenantId, ofProject)}
        searchable
        clearable
        hidePickedOptions
        value={fields.scopes}
        error={fieldError(error, 'scopes')}
        onChange={change('scopes')}
      />
      {ofProject && (
        <>
          <TagsInput
            label="Models"
            description="Only these; Enter adds one. Without any, all."
            clearable
            value={fields.models}
            error={fieldError(error, 'models')}
            onChange={change('models')}
          />
          <MultiSelect
            label="Lanes"
            description="Only these. Without any, all."
            data={LANES}
            searchable
            clearable
            value={fields.lanes}
            error={fieldError(error, 'lanes')}
            onChange={change('lanes')}
          />
        </>
      )}
      <TagsInput
        label="Addresses"
        description="Only from these networks, such as 192.0.2.0/24; Enter adds one."
        clearable
        value={fields.networks}
        error={fieldError(error, 'networks')}
        onChange={change('networks')}
      />
      <TextInput
        label="Ends at (UTC)"
        description="Without it, it is valid until it is revoked."
        type="datetime-local"
        value={fields.expires}
        error={fieldError(error, 'expires_at')}
        onChange={(event) => change('expires')(event.currentTarget.value)}
      />
    </>
  );
}
