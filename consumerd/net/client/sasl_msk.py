"""Tokens for Amazon MSK: requests that are signed with credentials of AWS, in place of a token of OAuth.

Strategy: Amazon's own signer signs (`aws-msk-iam-sasl-signer-python`, the extra `msk-iam`), and botocore finds the
credentials: those of the environment, of a profile, of a container or an instance. A token lasts for 15 minutes.
"""

from __future__ import annotations

import time

from consumerd.base.errors import ConfigError
from consumerd.net.client.errors import AuthenticationError
from consumerd.net.client.sasl import extra
from consumerd.net.client.sasl_oauth import OAuthToken


class MskIam:
    """The provider `aws_msk_iam` of tokens: of the default credentials, of a `profile`, or of an assumed role.

    `region`: that of the cluster, such as `eu-central-1`. Raises ConfigError for both a profile and a role, and where
    the extra is missing.
    """

    def __init__(
        self,
        *,
        region: str,
        profile: str | None = None,
        role_arn: str | None = None,
        session_name: str = "consumerd",
    ) -> None:
        if profile is not None and role_arn is not None:
            raise ConfigError("token_options: give profile or role_arn, not both.")
        self._signer = extra("aws_msk_iam_sasl_signer.MSKAuthTokenProvider", "aws_msk_iam", "msk-iam")
        self._region, self._profile = region, profile
        self._role_arn, self._session_name = role_arn, session_name

    def __call__(self) -> OAuthToken:
        """Return a new token. Raises AuthenticationError without credentials; botocore's errors pass."""
        try:
            if self._profile is not None:
                token, expiry = self._signer.generate_auth_token_from_profile(self._region, self._profile)
            elif self._role_arn is not None:
                token, expiry = self._signer.generate_auth_token_from_role_arn(
                    self._region, self._role_arn, self._session_name
                )
            else:
                token, expiry = self._signer.generate_auth_token(self._region)
        except (AttributeError, ValueError):  # of the signer, which was given none
            raise AuthenticationError(
                "aws_msk_iam: there are no AWS credentials: set AWS_PROFILE, profile or role_arn, or give a role"
            ) from None
        return OAuthToken(token, expiry / 1000 - time.time())
