/** The rate limits of one project or key, on its page. */
import { Button, Modal, Text } from '@mantine/core';
import { useDisclosure } from '@mantine/hooks';
import { useQuery } from '@tanstack/react-query';

import { Loaded } from '~/components/Loaded';
import { displayCount } from '~/money/decimal';

import { Details } from '../Details';
import { Section } from '../Section';
import { FIELDS, LIMITS_KEY, readLimits, type Subject } from './limits';
import { LimitsForm } from './LimitsForm';

interface LimitsSectionProps {
  at: Subject;
  /** The id of the project that it is, or that the key is of. */
  project: string;
  mayChange: boolean;
}

export function LimitsSection({ at, project, mayChange }: LimitsSectionProps) {
  const [opened, { open, close }] = useDisclosure();
  const limits = useQuery({
    queryKey: [LIMITS_KEY, at.scope, at.id],
    queryFn: () => readLimits(at, project),
  });
  return (
    <Section
      title="Rate limits"
      actions={
        mayChange &&
        limits.data !== undefined && (
          <Button variant="default" onClick={open}>
            {limits.data === null ? 'Set limits' : 'Change limits'}
          </Button>
        )
      }
    >
      <Loaded query={limits} what="the rate limits" height={60}>
        {(found) =>
          found === null ? (
            <Text c="dimmed">
              {at.scope === 'key' ? 'It has none of its own; those of its project apply.' : 'There are none.'}
            </Text>
          ) : (
            <Details
              label="Rate limits"
              fields={FIELDS.map(([name, label]) => [
                label,
                found[name] === null ? 'no limit' : displayCount(found[name]),
              ])}
            />
          )
        }
      </Loaded>
      <Modal opened={opened} onClose={close} title="Rate limits">
        <LimitsForm at={at} present={limits.data ?? null} done={close} />
      </Modal>
    </Section>
  );
}
